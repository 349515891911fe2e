//! Text in HTML and SVG: escaping, Markdown to HTML, and the page around it.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd, html::push_html};

use super::foreign::visible;

/// `text` as content or attribute value of XML and HTML.
pub fn escaped(text: &str) -> String {
    visible(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Markdown with tables as HTML. Names of models and hosts are part of such texts: raw HTML stays text, links and
/// pictures are reduced to their labels, and so the result contains no scripts and loads nothing.
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

/// Markdown that loads and runs nothing, whatever names are in it: raw HTML becomes text, and links and pictures lead to
/// files next to it only. Code stays as it is.
pub fn inert_markdown(text: &str) -> String {
    let mut text = visible(text).into_owned();
    // What was part of an HTML block is parsed only after the block has become text.
    for _ in 0..MAX_PASSES {
        let edits = inert_edits(&text);
        if edits.is_empty() {
            break;
        }
        for (at, replaced, by) in edits.into_iter().rev() {
            text.replace_range(at..at + replaced, by);
        }
    }
    text
}

const MAX_PASSES: usize = 8;

/// Places to edit in their order: an offset, the bytes to replace, and the replacement.
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

/// Not the name of a file in the same directory.
fn leads_away(url: &str) -> bool {
    url.contains([':', '/', '\\'])
}

/// A page in one file.
pub fn html_page(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escaped(title)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
