//! Checks HTML and SVG for errors that matter to a browser.

/// Every tag is closed by its own name, and every special character is escaped.
pub fn assert_well_formed(name: &str, text: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text.strip_prefix("<!doctype html>\n").unwrap_or(text);
    while let Some((before, after)) = rest.split_once('<') {
        let entity =
            |part: &str| ["amp;", "lt;", "gt;", "quot;", "apos;", "#"].iter().any(|e| part.starts_with(e));
        assert!(before.split('&').skip(1).all(entity), "{name}: a bare & in {before:?}");
        let (tag, after) = after.split_once('>').unwrap_or_else(|| panic!("{name}: an open tag at its end"));
        let tag_name = |tag: &'_ str| tag.split_whitespace().next().unwrap_or("").len();
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed), "{name}");
        } else if !tag.ends_with('/') && !tag.starts_with('?') {
            open.push(&tag[..tag_name(tag)]);
        }
        rest = after;
    }
    assert!(open.is_empty(), "{name}: not closed {open:?}");
}
