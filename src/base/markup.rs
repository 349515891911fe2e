//! Text in HTML and SVG: escaping, Markdown to HTML, and the page around it.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd, html::push_html};

/// `text` as content or attribute value of XML and HTML. Control characters other than line breaks are removed.
pub fn escaped(text: &str) -> String {
    without_controls(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// `text` without the control characters that XML does not allow and terminals interpret.
pub fn without_controls(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || *c == '\n').collect()
}

/// Markdown with tables as HTML. Names of models and hosts are part of such texts: raw HTML stays text, links and
/// pictures are reduced to their labels, and so the result contains no scripts and loads nothing.
pub fn html_from_markdown(text: &str) -> String {
    let text = without_controls(text);
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
            ("\u{1b}[31mred\u{0}\n", "<p>[31mred</p>\n"),
        ] {
            assert_eq!(html_from_markdown(text), html, "{text}");
        }
        assert_eq!(escaped("<a b=\"c\">&\u{7}"), "&lt;a b=&quot;c&quot;&gt;&amp;");
    }
}
