//! `report.html`: the text of `report.md` as one file with its plots in it. No scripts, no external resources.

use super::{
    markdown::{details_md, summary_md},
    plots::Plot,
    title,
};
use crate::{
    base::markup::{escaped, html_from_markdown, html_page},
    state::RunState,
};

const STYLE: &str = "\
:root{color-scheme:light dark;--text:#24292f;--paper:#fff;--line:#d5dae0;--faint:#57606a;--code:#f3f5f7}\
@media(prefers-color-scheme:dark){:root{--text:#d8dee9;--paper:#14171c;--line:#353b45;--faint:#98a2b3;--code:#1e232b}\
figure svg{filter:invert(.92) hue-rotate(180deg)}}\
body{margin:0 auto;max-width:62rem;padding:1rem;background:var(--paper);color:var(--text);\
font:16px/1.5 system-ui,sans-serif;overflow-wrap:break-word}\
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem;border-bottom:1px solid var(--line)}\
table{display:block;overflow-x:auto;border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.2rem 1rem .2rem 0;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}\
code,pre{background:var(--code);border-radius:3px;font-size:.88em}code{padding:0 .2em}pre{padding:.6rem;overflow-x:auto}pre code{padding:0;font-size:1em}\
figure{margin:1rem 0;overflow-x:auto}figure svg{width:100%;min-width:46rem;height:auto}figcaption{color:var(--faint);font-size:.88rem}\
figure svg>rect[fill=\"#FFFFFF\"]{fill:none}\
@media print{:root{--text:#000;--paper:#fff;--line:#bbb;--faint:#444;--code:#f3f5f7}\
body{max-width:none;padding:0;font-size:11pt}figure,tr{break-inside:avoid}h2{break-after:avoid}figure svg{filter:none;min-width:0}\
table{font-size:9pt}th,td{padding-right:.6rem}pre{font-size:7.5pt}pre,th,td{white-space:pre-wrap}}";

/// The report for a browser.
pub(super) fn report_html(state: &RunState, plots: &[Plot]) -> String {
    let title = title(state);
    let mut body = html_from_markdown(&summary_md(state));
    for plot in plots {
        let caption = escaped(plot.title);
        body += &format!("<figure>{}<figcaption>{caption}</figcaption></figure>\n", plot.svg.trim());
    }
    body += &html_from_markdown(&details_md(state));
    html_page(&title, STYLE, &body)
}
