//! `report.html`: the report as one file with its plots in it. No scripts, no external resources.

use super::{
    account::account_md,
    bill::bill_md,
    head::{Tile, facts, heading, tiles, verdict, warnings},
    markdown::{details_md, latencies_md},
    plots::{Format, ON_DARK, Plot, drawn, hex},
    server::server_md,
};
use crate::state::RunState;
use llmprof_analysis::throttle::Tone;
use llmprof_base::{
    foreign::{MAX_LINE, line},
    markup::{escaped, html_from_markdown, html_page},
};

/// Styles in addition to those of all pages: facts, verdict, tiles and plots.
const STYLE: &str = "\
.facts{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:1rem 0;font-size:.92rem}\
.facts dt{color:var(--faint)}.facts dd{margin:0;overflow-wrap:anywhere}\
.warning{border:1px solid var(--bad);border-radius:6px;color:var(--bad);font-weight:600;padding:.5rem .8rem}\
.verdict{border-left:4px solid var(--line);margin:1rem 0;padding:.1rem 0 .1rem .9rem}\
.verdict strong{font-size:1.08rem}.fine{border-color:var(--good)}.bad{border-color:var(--bad)}\
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(10.5rem,1fr));gap:.8rem;margin:1.4rem 0;padding:0;list-style:none}\
.tiles li{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:.6rem .9rem}\
.tiles span{color:var(--faint);display:block;font-size:.85rem}\
.tiles b{display:block;font-size:1.55rem;font-variant-numeric:tabular-nums;font-weight:600;line-height:1.35;white-space:nowrap}\
figure{margin:1.6rem 0}figure svg{display:block;height:auto;width:100%}figure svg text{font-family:system-ui,sans-serif}\
figcaption{color:var(--text);font-weight:600;margin-bottom:.4rem}figure svg>rect[fill=\"#FFFFFF\"]{fill:none}\
.hover rect:hover{fill-opacity:.12}.phone{display:none}\
@media screen and (max-width:42rem){.page{display:none}.phone{display:block}.facts{display:block}.facts dt,.facts dd{display:inline}\
.facts dt::after{content:\": \"}.facts dd::after{content:\"\\A\";white-space:pre}\
.tiles{grid-template-columns:1fr 1fr}.tiles li:last-child{grid-column:1/-1}.tiles b{font-size:1.25rem}}\
@media print{figure,.tiles,.verdict{break-inside:avoid}}";

/// The report for a browser.
pub(super) fn report_html(state: &RunState, plots: &[Plot]) -> String {
    let heading = heading(state);
    let mut body = head(state, &heading);
    body += &html_from_markdown(
        &(latencies_md(state) + &account_md(state) + &bill_md(state) + &server_md(state)),
    );
    body.extend(plots.iter().map(|plot| figure(state, plot)));
    body += &html_from_markdown(&details_md(state));
    html_page(&heading, &format!("{STYLE}{}", dark_plots()), &body)
}

/// Untrusted text, on one line.
fn shown(text: &str) -> String {
    escaped(&line(text, MAX_LINE))
}

/// The facts, then the verdict, then the numbers.
fn head(state: &RunState, heading: &str) -> String {
    let mut out = format!("<header>\n<h1>{}</h1>\n<dl class=\"facts\">\n", shown(heading));
    for (name, fact) in facts(state) {
        out += &format!("<dt>{name}</dt><dd>{}</dd>\n", shown(&fact));
    }
    out += "</dl>\n</header>\n";
    for warning in warnings(state) {
        out += &format!("<p class=\"warning\">{}</p>\n", shown(&warning));
    }
    for paragraph in verdict(state) {
        let class = match paragraph.tone {
            Tone::Fine => "verdict fine",
            Tone::Bad => "verdict bad",
            Tone::Note | Tone::Unknown => "verdict",
        };
        let [first, rest] = [paragraph.first, paragraph.rest].map(|text| shown(&text));
        out += &format!("<p class=\"{class}\"><strong>{first}</strong> {rest}</p>\n");
    }
    let tile = |tile: Tile| {
        let [value, note] = [tile.value, tile.note].map(|text| shown(&text));
        format!("<li><span>{}</span><b>{value}</b><span>{note}</span></li>\n", tile.label)
    };
    let tiles: String = tiles(state).into_iter().map(tile).collect();
    if !tiles.is_empty() {
        out += &format!("<ul class=\"tiles\">\n{tiles}</ul>\n");
    }
    out
}

/// A plot for a page and one for a phone; the page shows one of them.
fn figure(state: &RunState, plot: &Plot) -> String {
    let [page, phone] = [Format::Page, Format::Phone]
        .map(|format| drawn(state, plot.name, format).unwrap_or_default().trim().to_owned());
    format!(
        "<figure><figcaption>{}</figcaption>\n<div class=\"page\">{page}</div>\n<div class=\"phone\">{phone}</div>\n\
         </figure>\n",
        escaped(plot.title)
    )
}

/// The colours of the plots on a dark page.
fn dark_plots() -> String {
    let rules = ON_DARK.map(|(light, dark)| {
        let light = hex(light);
        format!("svg [fill=\"{light}\"]{{fill:{dark}}}svg [stroke=\"{light}\"]{{stroke:{dark}}}")
    });
    format!("@media screen and (prefers-color-scheme:dark){{{}}}", rules.concat())
}
