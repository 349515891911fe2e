//! Text in HTML and SVG: escaping, Markdown to HTML, and the page around it.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd, html::push_html};

use super::foreign::visible;

/// `text` as content or attribute value of XML and HTML.
pub fn escaped(text: &str) -> String {
    visible(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Markdown with tables as HTML. Names of models and hosts are part of such texts: raw HTML stays text, links and
/// images are reduced to their labels, and so the result contains no scripts and loads nothing.
pub fn html_from_markdown(text: &str) -> String {
    let text = visible(text);
    let events = Parser::new_ext(&text, Options::ENABLE_TABLES).filter_map(|event| match event {
        Event::Html(raw) | Event::InlineHtml(raw) => Some(Event::Text(raw)),
        Event::Start(Tag::HtmlBlock) => Some(Event::Start(Tag::Paragraph)),
        Event::End(TagEnd::HtmlBlock) => Some(Event::End(TagEnd::Paragraph)),
        Event::Start(Tag::Link { .. } | Tag::Image { .. }) | Event::End(TagEnd::Link | TagEnd::Image) => None,
        event => Some(event),
    });
    let mut html = String::new();
    push_html(&mut html, events);
    html
}

/// Markdown that loads and runs nothing, whatever names it contains: raw HTML becomes text, and links and images lead
/// only to files in the same directory. Code is unchanged.
pub fn inert_markdown(text: &str) -> String {
    let mut text = visible(text).into_owned();
    // The content of an HTML block or of a link is parsed again as text.
    for _ in 0..MAX_PASSES {
        let edits = inert_edits(&text);
        if edits.is_empty() {
            return text;
        }
        for (at, replaced, by) in edits.into_iter().rev() {
            text.replace_range(at..at + replaced, by);
        }
    }
    without_brackets(&text)
}

/// Texts of this program need one pass.
const MAX_PASSES: usize = 8;

/// Removes tags and links, also in code.
fn without_brackets(text: &str) -> String {
    let mut out = String::with_capacity(2 * text.len());
    let mut escaped = false;
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '[' if !escaped => out.push_str("\\["),
            c => out.push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    out
}

/// Edits in order: an offset, the number of bytes to replace, and the replacement.
fn inert_edits(text: &str) -> Vec<(usize, usize, &'static str)> {
    let mut edits = Vec::new();
    let mut in_code = false;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        let part = &text[range.clone()];
        let mut replace = |found: &str, by| {
            edits.extend(part.match_indices(found).map(|(at, _)| (range.start + at, found.len(), by)));
        };
        match event {
            Event::Html(_) | Event::InlineHtml(_) => replace("<", "&lt;"),
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. })
                if leads_away(&dest_url) =>
            {
                let by = if part.starts_with('<') { "&lt;" } else { "\\[" };
                edits.extend(part.find(['<', '[']).map(|at| (range.start + at, 1, by)));
            }
            Event::Start(Tag::CodeBlock(_)) => in_code = true,
            Event::End(TagEnd::CodeBlock) => in_code = false,
            // Not every renderer knows where code ends.
            Event::Code(_) => replace("<script", "\\u003cscript"),
            Event::Text(_) if in_code => replace("<script", "\\u003cscript"),
            _ => {}
        }
    }
    edits.sort_unstable();
    edits.dedup_by_key(|(at, ..)| *at);
    edits
}

/// Whether `url` is anything but the name of a file in the same directory.
fn leads_away(url: &str) -> bool {
    url.contains([':', '/', '\\'])
}

/// The style of every page: light and dark, on a phone and in print.
const PAGE_STYLE: &str = "\
:root{color-scheme:light dark;--text:#1f2328;--paper:#fff;--panel:#f6f8fa;--line:#d5dae0;--faint:#57606a;--code:#f1f3f5;\
--good:#116329;--warn:#7d4e00;--bad:#b3261e}\
@media screen and (prefers-color-scheme:dark){:root{--text:#d8dee9;--paper:#14171c;--panel:#1b2027;--line:#353b45;\
--faint:#a0a9b8;--code:#1e232b;--good:#6fd197;--warn:#e8b25a;--bad:#ff8a80}}\
*{box-sizing:border-box}\
body{margin:0 auto;max-width:62rem;padding:1rem;background:var(--paper);color:var(--text);\
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}\
h1{font-size:1.7rem;line-height:1.25;margin:.4rem 0}h2{font-size:1.2rem;margin:2.2rem 0 .8rem;padding-bottom:.2rem;\
border-bottom:1px solid var(--line)}\
table{display:block;overflow-x:auto;border-collapse:collapse;font-variant-numeric:tabular-nums;overflow-wrap:normal}\
th,td{padding:.25rem 1.2rem .25rem 0;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}\
th{color:var(--faint);font-weight:600}\
code,pre{background:var(--code);border-radius:4px;font-size:.88em}code{padding:.1em .3em}\
pre{padding:.6rem;overflow-x:auto;overflow-wrap:normal}pre code{padding:0;font-size:1em}\
@media screen and (max-width:42rem){body{font-size:15px}h1{font-size:1.4rem}th,td{padding-right:.8rem}}\
@media print{:root{color-scheme:light}body{max-width:none;padding:0;font-size:11pt}tr{break-inside:avoid}h2{break-after:avoid}\
table{font-size:9pt}th,td{padding-right:.6rem}pre{font-size:7.5pt}pre,th,td{white-space:pre-wrap}}";

/// A page in one file, with its own style in addition to that of all pages. It runs nothing and loads nothing.
pub fn html_page(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{}</title>\n<style>{PAGE_STYLE}{style}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escaped(title)
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn no_markdown_of_names_has_html(text in r##"(<|>|</|<!--|-->|<a |<b>|script|div|!|\[|\]|\(|\)|http://a|:|`|```|\||#|-|\*|&|;|"|=|\\|a| |\n){0,40}"##) {
            let inert = inert_markdown(&text);
            prop_assert_eq!(inert_edits(&inert), [], "{}", inert);
            prop_assert_eq!(inert_edits(&without_brackets(&text)), [], "{}", text);
        }
    }

    #[test]
    fn markdown_becomes_html() {
        for (text, html) in [
            ("# One\n\ntwo\nthree\n", "<h1>One</h1>\n<p>two\nthree</p>\n"),
            (
                "- `a` < **b**\n- c\n",
                "<ul>\n<li><code>a</code> &lt; <strong>b</strong></li>\n<li>c</li>\n</ul>\n",
            ),
            (
                "| a | b |\n|---|---:|\n| x\\|y | 1 |\n",
                "<table><thead><tr><th>a</th><th style=\"text-align: right\">b</th></tr></thead><tbody>\n\
                 <tr><td>x|y</td><td style=\"text-align: right\">1</td></tr>\n</tbody></table>\n",
            ),
            ("```text\n<# x\n```\n", "<pre><code class=\"language-text\">&lt;# x\n</code></pre>\n"),
            ("a ` b\n", "<p>a ` b</p>\n"),
        ] {
            assert_eq!(html_from_markdown(text), html, "{text}");
        }
    }

    #[test]
    fn names_from_outside_cannot_become_markup() {
        for (text, html) in [
            ("# <script>x</script>\n", "<h1>&lt;script&gt;x&lt;/script&gt;</h1>\n"),
            ("<script>\nx\n</script>\n", "<p>&lt;script&gt;\nx\n&lt;/script&gt;\n</p>\n"),
            ("<!-- x -->\n", "<p>&lt;!-- x --&gt;\n</p>\n"),
            ("[a](javascript:x) <http://a.b>\n", "<p>a http://a.b</p>\n"),
            ("![a](http://a.b/c.png)\n", "<p>a</p>\n"),
            ("\u{1b}[31mred\u{0}\n", "<p>\\u001b[31mred\\u0000</p>\n"),
        ] {
            assert_eq!(html_from_markdown(text), html, "{text}");
        }
        assert_eq!(escaped("<a b=\"c\">&\u{7}"), "&lt;a b=&quot;c&quot;&gt;&amp;\\u0007");
    }

    #[test]
    fn markdown_of_names_is_inert() {
        for (text, inert) in [
            ("# <script>x</script>\n", "# &lt;script>x&lt;/script>\n"),
            ("<script>\n[a](http://a.b)\n</script>\n", "&lt;script>\n\\[a](http://a.b)\n&lt;/script>\n"),
            ("- a <img src=x onerror=y> b < c\n", "- a &lt;img src=x onerror=y> b < c\n"),
            (
                "![p](plot.svg) ![p](http://a.b/c) [a](//a.b)\n",
                "![p](plot.svg) !\\[p](http://a.b/c) \\[a](//a.b)\n",
            ),
            ("<http://a.b> <!-- x -->\n", "&lt;http://a.b> &lt;!-- x -->\n"),
            ("`gemm<float>` `<b>`\n", "`gemm<float>` `<b>`\n"),
            ("```text\nf<int> <script>\n```\n", "```text\nf<int> \\u003cscript>\n```\n"),
            ("| a |\n|---|\n| <b>x\\|y |\n", "| a |\n|---|\n| &lt;b>x\\|y |\n"),
            ("\u{1b}c\u{202e}\n", "\\u001bc\\u202e\n"),
        ] {
            assert_eq!(inert_markdown(text), inert, "{text}");
        }
    }
}
