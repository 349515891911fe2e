//! `report.html`: what `report.md` says, as one file with its pictures in it. No scripts, nothing from elsewhere.

use super::{markdown, plots::Plot};
use crate::state::RunState;

const STYLE: &str = "\
:root{color-scheme:light dark;--text:#24292f;--paper:#fff;--line:#d5dae0;--faint:#57606a;--code:#f3f5f7}\
@media(prefers-color-scheme:dark){:root{--text:#d8dee9;--paper:#14171c;--line:#353b45;--faint:#98a2b3;--code:#1e232b}\
figure svg{filter:invert(.92) hue-rotate(180deg)}}\
body{margin:0 auto;max-width:62rem;padding:1rem;background:var(--paper);color:var(--text);\
font:16px/1.5 system-ui,sans-serif;overflow-wrap:break-word}\
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem;border-bottom:1px solid var(--line)}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.2rem 1rem .2rem 0;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}\
.n{text-align:right}\
code,pre{background:var(--code);border-radius:3px;font-size:.88em}code{padding:0 .2em}pre{padding:.6rem;overflow-x:auto}\
figure{margin:1rem 0;overflow-x:auto}figure svg{width:100%;min-width:46rem;height:auto}figcaption{color:var(--faint);font-size:.88rem}\
figure svg>rect[fill=\"#FFFFFF\"]{fill:none}\
@media print{:root{--text:#000;--paper:#fff;--line:#bbb;--faint:#444;--code:#f3f5f7}\
body{max-width:none;padding:0;font-size:11pt}figure,tr{break-inside:avoid}h2{break-after:avoid}figure svg{filter:none;min-width:0}\
table{font-size:9pt}th,td{padding-right:.6rem}pre{font-size:7.5pt}pre,th,td{white-space:pre-wrap}}";

/// The report for a browser.
pub fn report_html(state: &RunState, plots: &[Plot]) -> String {
    let title = state.run.as_ref().map_or("a run", |run| &run.model);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{}</body>\n</html>\n",
        escaped(title),
        body(&markdown::with_plots(state, plots), plots)
    )
}

fn escaped(text: &str) -> String {
    // A terminal's control characters have no place in a document.
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// What is open while going through the lines.
#[derive(PartialEq, Clone, Copy)]
enum Block {
    None,
    Paragraph,
    List,
    Table,
    Code,
}

impl Block {
    fn close(self) -> &'static str {
        match self {
            Block::None => "",
            Block::Paragraph => "</p>\n",
            Block::List => "</ul>\n",
            Block::Table => "</table></div>\n",
            Block::Code => "</pre>\n",
        }
    }

    fn open(self) -> &'static str {
        match self {
            Block::None => "",
            Block::Paragraph => "<p>",
            Block::List => "<ul>\n",
            Block::Table => "<div class=\"wide\"><table>\n",
            Block::Code => "<pre>",
        }
    }
}

/// The Markdown that our reports are written in: headings, paragraphs, lists, tables, fences, pictures.
fn body(text: &str, plots: &[Plot]) -> String {
    let mut out = String::new();
    let mut block = Block::None;
    let mut turn = |out: &mut String, to: Block| {
        if block != to {
            out.push_str(block.close());
            out.push_str(to.open());
        }
        std::mem::replace(&mut block, to)
    };
    let mut in_code = false;
    let mut numeric = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            in_code = !in_code;
            turn(&mut out, if in_code { Block::Code } else { Block::None });
        } else if in_code {
            out.push_str(&escaped(line));
            out.push('\n');
        } else if line.trim().is_empty() {
            turn(&mut out, Block::None);
        } else if let Some((level, words)) = heading(line) {
            turn(&mut out, Block::None);
            out.push_str(&format!("<h{level}>{}</h{level}>\n", inline(words)));
        } else if let Some(plot) = picture(line, plots) {
            turn(&mut out, Block::None);
            let svg = plot.svg.trim();
            out.push_str(&format!(
                "<figure>{svg}<figcaption>{}</figcaption></figure>\n",
                escaped(plot.title)
            ));
        } else if let Some(words) = line.strip_prefix("- ") {
            turn(&mut out, Block::List);
            out.push_str(&format!("<li>{}</li>\n", inline(words)));
        } else if line.starts_with('|') {
            let tag = if turn(&mut out, Block::Table) == Block::Table { "td" } else { "th" };
            let row = cells(line);
            if tag == "th" {
                numeric = lines.peek().and_then(|below| alignment(&cells(below))).unwrap_or_default();
            }
            if alignment(&row).is_none() {
                let cell = |(i, cell): (usize, &String)| {
                    let class = if numeric.get(i) == Some(&true) { " class=\"n\"" } else { "" };
                    format!("<{tag}{class}>{}</{tag}>", inline(cell))
                };
                let row: String = row.iter().enumerate().map(cell).collect();
                out.push_str(&format!("<tr>{row}</tr>\n"));
            }
        } else {
            if turn(&mut out, Block::Paragraph) == Block::Paragraph {
                out.push('\n');
            }
            out.push_str(&inline(line));
        }
    }
    turn(&mut out, Block::None);
    out
}

fn heading(line: &str) -> Option<(usize, &str)> {
    let level = line.chars().take_while(|c| *c == '#').count();
    Some((level, line.get(level..)?.strip_prefix(' ')?)).filter(|_| (1..=3).contains(&level))
}

fn picture<'a>(line: &str, plots: &'a [Plot]) -> Option<&'a Plot> {
    let (_, file) = line.strip_prefix("![")?.strip_suffix(')')?.split_once("](")?;
    plots.iter().find(|plot| plot.name == file)
}

/// The cells of a row; a bar after a backslash is part of its cell.
fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches('|');
    let inner = inner.strip_suffix('|').unwrap_or(inner);
    let mut cells = vec![String::new()];
    let mut chars = inner.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.peek() == Some(&'|') => cells.iter_mut().last().into_iter().for_each(|cell| {
                cell.extend(chars.next());
            }),
            '|' => cells.push(String::new()),
            c => cells.iter_mut().last().into_iter().for_each(|cell| cell.push(c)),
        }
    }
    cells.into_iter().map(|cell| cell.trim().to_owned()).collect()
}

/// Which columns stand at the right, if this is the line below the titles.
fn alignment(cells: &[String]) -> Option<Vec<bool>> {
    let rule = |cell: &String| cell.contains('-') && cell.trim_matches(['-', ':']).is_empty();
    cells.iter().all(rule).then(|| cells.iter().map(|cell| cell.ends_with(':')).collect())
}

/// Words with `code` and **weight** in them.
fn inline(words: &str) -> String {
    let pairs = |text: &str, mark: &str, tag: &str| {
        let parts: Vec<&str> = text.split(mark).collect();
        let whole = parts.len() % 2 == 1;
        let part = |(i, part): (usize, &&str)| match (i % 2 == 1, whole || i + 1 < parts.len()) {
            (true, true) => format!("<{tag}>{part}</{tag}>"),
            (true, false) => format!("{mark}{part}"),
            _ => (*part).to_owned(),
        };
        parts.iter().enumerate().map(part).collect::<String>()
    };
    pairs(&pairs(&escaped(words), "`", "code"), "**", "strong")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_markdown_becomes_what_it_means() {
        let plots = [Plot { name: "a.svg", title: "A & B", svg: "<svg/>".to_owned() }];
        for (text, html) in [
            ("# One\n\ntwo\nthree\n", "<h1>One</h1>\n<p>two\nthree</p>\n"),
            (
                "- `a` < **b**\n- c\n",
                "<ul>\n<li><code>a</code> &lt; <strong>b</strong></li>\n<li>c</li>\n</ul>\n",
            ),
            (
                "| a | b |\n|---|---|\n| x\\|y | – |\n",
                "<div class=\"wide\"><table>\n<tr><th>a</th><th>b</th></tr>\n<tr><td>x|y</td><td>–</td></tr>\n</table></div>\n",
            ),
            (
                "| a | b |\n|---|---:|\n| x | 1 |\n",
                "<div class=\"wide\"><table>\n<tr><th>a</th><th class=\"n\">b</th></tr>\n<tr><td>x</td><td class=\"n\">1</td></tr>\n</table></div>\n",
            ),
            ("```text\n<# x\n```\n", "<pre>&lt;# x\n</pre>\n"),
            ("![x](a.svg)\n", "<figure><svg/><figcaption>A &amp; B</figcaption></figure>\n"),
            ("![x](gone.svg)\n", "<p>![x](gone.svg)</p>\n"),
            ("a ` b\n", "<p>a ` b</p>\n"),
            ("\u{1b}[31mred\u{0}\n", "<p>[31mred</p>\n"),
        ] {
            assert_eq!(body(text, &plots), html, "{text}");
        }
    }
}
