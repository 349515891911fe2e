//! The lexemes of unquoted values, shared by the grammars of overrides and interpolations.
//!
//! As in the grammars of Hydra and OmegaConf the longest match wins, then the more specific one: `1e3` is a number,
//! `1e3x` is a number and a name, which together are text.

/// One lexeme of an unquoted value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lexeme {
    Null,
    Bool,
    Int,
    Float,
    Name,
    /// Escaped characters, each with its backslash.
    Escape,
    Space,
    /// Another character that is allowed in unquoted text.
    Other,
}

/// The lexeme at the start of `text` and its length in bytes; `None` if the first character needs quotes.
pub(crate) fn first_lexeme(text: &str) -> Option<(Lexeme, usize)> {
    let bytes = text.as_bytes();
    let first = *bytes.first()?;
    let run = |accept: fn(u8) -> bool| bytes.iter().take_while(|&&byte| accept(byte)).count();
    if is_space(first) {
        return Some((Lexeme::Space, run(is_space)));
    }
    let escape = escape_len(bytes);
    if escape > 0 {
        return Some((Lexeme::Escape, escape));
    }
    let name = if first.is_ascii_alphabetic() || first == b'_' {
        run(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
    } else {
        0
    };
    let (float, int) = (float_len(bytes), int_len(bytes));
    let longest = name.max(float).max(int);
    if longest == 0 {
        return b"/-\\+.$%*@?|".contains(&first).then_some((Lexeme::Other, 1));
    }
    let word = &text[..longest];
    let lexeme = match () {
        () if float == longest => Lexeme::Float,
        () if int == longest => Lexeme::Int,
        () if word.eq_ignore_ascii_case("true") || word.eq_ignore_ascii_case("false") => Lexeme::Bool,
        () if word.eq_ignore_ascii_case("null") => Lexeme::Null,
        () => Lexeme::Name,
    };
    Some((lexeme, longest))
}

pub(crate) fn is_space(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// The text of an `Escape` without its backslashes.
pub(crate) fn unescaped(text: &str) -> String {
    text.chars().skip(1).step_by(2).collect()
}

/// The value of an `Int`; `None` if it is too large.
pub(crate) fn int_value(text: &str) -> Option<i128> {
    text.replace('_', "").parse().ok()
}

/// The value of a `Float`.
pub(crate) fn float_value(text: &str) -> f64 {
    // Rust parses everything the grammar accepts: digits, a point, an exponent, inf and nan.
    text.replace('_', "").parse().unwrap_or(f64::NAN)
}

fn escape_len(bytes: &[u8]) -> usize {
    let escaped = |pair: &&[u8]| pair.len() == 2 && pair[0] == b'\\' && b"\\()[]{}:=, \t".contains(&pair[1]);
    2 * bytes.chunks(2).take_while(escaped).count()
}

/// `0`, or digits without a leading zero, with single underscores between them.
pub(crate) fn unsigned_len(bytes: &[u8]) -> usize {
    match bytes.first() {
        Some(b'0') => 1,
        Some(digit) if digit.is_ascii_digit() => digits_len(bytes),
        _ => 0,
    }
}

fn digits_len(bytes: &[u8]) -> usize {
    let digit = |index: usize| bytes.get(index).is_some_and(u8::is_ascii_digit);
    if !digit(0) {
        return 0;
    }
    let mut end = 1;
    loop {
        if digit(end) {
            end += 1;
        } else if bytes.get(end) == Some(&b'_') && digit(end + 1) {
            end += 2;
        } else {
            return end;
        }
    }
}

fn sign_len(bytes: &[u8]) -> usize {
    usize::from(matches!(bytes.first(), Some(b'+' | b'-')))
}

fn int_len(bytes: &[u8]) -> usize {
    let sign = sign_len(bytes);
    match unsigned_len(&bytes[sign..]) {
        0 => 0,
        len => sign + len,
    }
}

fn float_len(bytes: &[u8]) -> usize {
    let sign = sign_len(bytes);
    let body = &bytes[sign..];
    let special =
        body.len() >= 3 && (body[..3].eq_ignore_ascii_case(b"inf") || body[..3].eq_ignore_ascii_case(b"nan"));
    if special {
        return sign + 3;
    }
    let integer = unsigned_len(body);
    let point = body.get(integer) == Some(&b'.');
    let fraction = if point { digits_len(&body[integer + 1..]) } else { 0 };
    let mut end = match (integer, point, fraction) {
        (0, _, 0) => return 0,
        (integer, true, fraction) => integer + 1 + fraction,
        (integer, false, _) => integer,
    };
    let mut is_float = point;
    if matches!(body.get(end), Some(b'e' | b'E')) {
        let after = end + 1 + sign_len(&body[end + 1..]);
        let exponent = digits_len(&body[after..]);
        if exponent > 0 {
            end = after + exponent;
            is_float = true;
        }
    }
    if is_float { sign + end } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_match_wins() {
        let table = [
            ("1", Lexeme::Int, 1),
            ("1_000x", Lexeme::Int, 5),
            ("01", Lexeme::Int, 1),
            ("-3,", Lexeme::Int, 2),
            ("1e3", Lexeme::Float, 3),
            ("1e", Lexeme::Int, 1),
            ("5.", Lexeme::Float, 2),
            (".5e-1_0", Lexeme::Float, 7),
            ("-inf", Lexeme::Float, 4),
            ("infinity", Lexeme::Name, 8),
            ("nan", Lexeme::Float, 3),
            ("True", Lexeme::Bool, 4),
            ("true1", Lexeme::Name, 5),
            ("NULL", Lexeme::Null, 4),
            ("a-b_1.c", Lexeme::Name, 5),
            (".", Lexeme::Other, 1),
            ("-x", Lexeme::Other, 1),
            (r"\,\ x", Lexeme::Escape, 4),
            (r"\n", Lexeme::Other, 1),
            ("  a", Lexeme::Space, 2),
        ];
        for (text, lexeme, len) in table {
            assert_eq!(first_lexeme(text), Some((lexeme, len)), "{text:?}");
        }
        for text in ["", "#", "(", "é", "=", "'", "~"] {
            assert_eq!(first_lexeme(text), None, "{text:?}");
        }
    }

    #[test]
    fn values_of_lexemes() {
        assert_eq!(int_value("-1_000"), Some(-1000));
        assert_eq!(int_value("+5"), Some(5));
        assert_eq!(float_value("1_0.5e1"), 105.0);
        assert_eq!(float_value("5."), 5.0);
        assert_eq!(float_value("-Inf"), f64::NEG_INFINITY);
        assert!(float_value("NaN").is_nan());
        assert_eq!(unescaped(r"\,\\"), r",\");
    }
}
