//! Text of another process is untrusted: its length is bounded and its control characters are removed.

/// Also removes the characters that reorder or hide text on a terminal.
pub fn sanitised(text: &str, max: usize) -> String {
    text.chars().filter(|character| visible(*character)).take(max).collect()
}

fn visible(character: char) -> bool {
    let reorders =
        matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
    !character.is_control() && !reorders && character != '\u{feff}'
}

#[cfg(test)]
mod tests {
    use super::sanitised;

    #[test]
    fn escapes_are_removed_and_length_is_bounded() {
        assert_eq!(sanitised("a\u{1b}[31m\nb\u{202e}c", 99), "a[31mbc");
        assert_eq!(sanitised(&"é".repeat(50), 3), "ééé");
    }
}
