//! Numbers and units as profilers print them.

use std::cmp::Ordering;

/// How a file marks decimals. The other mark separates thousands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Decimal {
    /// `1,234.5`
    #[default]
    Point,
    /// `1.234,5`, as in most European locales.
    Comma,
}

impl Decimal {
    fn mark(self) -> u8 {
        match self {
            Decimal::Point => b'.',
            Decimal::Comma => b',',
        }
    }

    fn thousands(self) -> u8 {
        match self {
            Decimal::Point => b',',
            Decimal::Comma => b'.',
        }
    }

    /// The number in a cell. Thousands may be separated; text in parentheses after it is dropped.
    ///
    /// `None` for `n/a`, `nan`, `inf` and words, and if the marks contradict this locale: a missing value is neither
    /// zero nor a wrong number.
    pub fn number(self, cell: &[u8]) -> Option<f64> {
        let cell = cell.trim_ascii();
        self.plain(cell).or_else(|| self.unusual(cell))
    }

    /// Up to fifteen digits with marks: digits and power of ten are exact, so their quotient is the nearest number.
    #[inline]
    fn plain(self, cell: &[u8]) -> Option<f64> {
        let (mark, thousands) = (self.mark(), self.thousands());
        let (negative, digits) = match cell.split_first()? {
            (b'-', rest) => (true, rest),
            _ => (false, cell),
        };
        let (mut value, mut count, mut behind) = (0u64, 0u32, None);
        // Digits since the last mark of thousands.
        let mut group = None;
        for byte in digits {
            match *byte {
                digit @ b'0'..=b'9' => {
                    value = value * 10 + u64::from(digit - b'0');
                    count += 1;
                    if count > 15 {
                        return None;
                    }
                    match &mut behind {
                        Some(behind) => *behind += 1,
                        None => group = group.map(|n: u32| n + 1),
                    }
                }
                byte if byte == thousands && behind.is_none() && count > 0 => group = Some(0),
                byte if byte == mark && behind.is_none() => behind = Some(0usize),
                _ => return None,
            }
        }
        if count == 0 || group.is_some_and(|digits| digits != 3) {
            return None;
        }
        let value = value as f64 / TENS[behind.unwrap_or(0)];
        Some(if negative { -value } else { value })
    }

    /// Exponents, long numbers, `12 (3; 4; 5)`, thousands separated by an apostrophe or a space that does not break.
    fn unusual(self, cell: &[u8]) -> Option<f64> {
        let text = std::str::from_utf8(cell).ok()?;
        let text = text.split(" (").next()?.trim().trim_end_matches('%').trim_end();
        if !text.starts_with(|c: char| c.is_ascii_digit() || "+-.,".contains(c)) {
            return None;
        }
        let (mark, thousands) = (char::from(self.mark()), char::from(self.thousands()));
        let (whole, fraction) =
            text.split_once(mark).map_or((text, None), |(whole, rest)| (whole, Some(rest)));
        if whole.rsplit_once(thousands).is_some_and(|(_, group)| group.len() != 3) {
            return None;
        }
        let whole = whole.replace([thousands, '\'', '\u{a0}', '\u{202f}'], "");
        let text = fraction.map_or_else(|| whole.clone(), |fraction| format!("{whole}.{fraction}"));
        text.parse().ok().filter(|value: &f64| value.is_finite())
    }
}

/// The powers of ten that are exact.
const TENS: [f64; 16] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// The meaning of three digits behind the only mark of a number, e.g. `1.234`, in files that have no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreeDigits {
    /// nsys prints sizes with three decimals.
    Fraction,
    /// ncu prints two decimals at most: it has durations in whole nanoseconds.
    Thousands,
}

/// Numbers that can be read in one locale only, counted for each.
#[derive(Debug, Default)]
pub struct DecimalVotes {
    point: u64,
    comma: u64,
    /// `1.234` and `1,234`, which are numbers in both.
    three_behind_point: u64,
    three_behind_comma: u64,
}

impl DecimalVotes {
    /// Counts a cell. `1,234` is a number in both locales.
    pub fn count(&mut self, cell: &[u8]) {
        let cell = cell.trim_ascii();
        // Whole numbers without marks are most cells.
        if !cell.iter().any(|byte| matches!(byte, b'.' | b',')) {
            return;
        }
        match (decisive(Decimal::Point, cell), decisive(Decimal::Comma, cell)) {
            (true, false) => self.point += 1,
            (false, true) => self.comma += 1,
            (true, true) if cell.contains(&b'.') => self.three_behind_point += 1,
            (true, true) => self.three_behind_comma += 1,
            (false, false) => {}
        }
    }

    /// The locale of most numbers; if none decides, the locale by `three_digits`.
    pub fn decided(&self, three_digits: ThreeDigits) -> Decimal {
        let undecided = match three_digits {
            ThreeDigits::Fraction => Ordering::Equal,
            ThreeDigits::Thousands => self.three_behind_point.cmp(&self.three_behind_comma),
        };
        match self.comma.cmp(&self.point).then(undecided) {
            Ordering::Greater => Decimal::Comma,
            _ => Decimal::Point,
        }
    }
}

/// Whether a cell is a number of this locale. Thousands do not begin with a zero and have at most three digits before their
/// first mark.
fn decisive(decimal: Decimal, cell: &[u8]) -> bool {
    let digits = cell.strip_prefix(b"-").unwrap_or(cell);
    let first = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let grouped = digits.get(first) == Some(&decimal.thousands());
    decimal.plain(cell).is_some() && !(grouped && (first > 3 || digits.starts_with(b"0")))
}

/// A base unit, and the factor that converts a value to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Scale {
    pub unit: String,
    pub factor: f64,
}

/// The base of a unit: ns for times, byte for sizes, per second for rates; `Kbyte/block` is 1000 `byte/block`. Prefixes
/// are powers of ten. An unknown unit is its own base.
pub fn base(unit: &str) -> Scale {
    let unit = unit.trim();
    let (above, below) = match unit.split_once('/') {
        Some((above, below)) => (above.trim(), Some(below.trim())),
        None => (unit, None),
    };
    let above = one(above);
    let Some(below) = below else { return above };
    match seconds(below) {
        Some(seconds) => Scale { unit: format!("{}/s", above.unit), factor: above.factor / seconds },
        None => Scale { unit: format!("{}/{below}", above.unit), factor: above.factor },
    }
}

fn one(unit: &str) -> Scale {
    if let Some(seconds) = seconds(unit) {
        return Scale { unit: "ns".to_owned(), factor: seconds * 1e9 };
    }
    const NOUNS: [(&str, &str); 12] = [
        ("byte", "byte"),
        ("bytes", "byte"),
        ("b", "byte"),
        ("hz", "Hz"),
        ("inst", "inst"),
        ("cycle", "cycle"),
        ("sector", "sector"),
        ("warp", "warp"),
        ("thread", "thread"),
        ("request", "request"),
        ("block", "block"),
        ("op", "op"),
    ];
    let lower = unit.to_lowercase();
    let named = |name: &str| NOUNS.iter().find(|(noun, _)| *noun == name).map(|(_, base)| (*base).to_owned());
    if let Some(unit) = named(&lower) {
        return Scale { unit, factor: 1.0 };
    }
    let prefix = |letter: char| match letter {
        'k' => Some(1e3),
        'm' => Some(1e6),
        'g' => Some(1e9),
        't' => Some(1e12),
        'p' => Some(1e15),
        _ => None,
    };
    // Binary units have an i after the prefix.
    let binary = |letter: char| prefix(letter).map(|factor: f64| 1024f64.powf(factor.log10() / 3.0));
    let mut letters = lower.chars();
    let first = letters.next();
    let rest = letters.as_str();
    if let (Some(factor), Some(unit)) = (first.and_then(binary), rest.strip_prefix('i').and_then(named)) {
        return Scale { unit, factor };
    }
    match (first.and_then(prefix), named(rest)) {
        (Some(factor), Some(unit)) => Scale { unit, factor },
        _ => Scale { unit: unit.to_owned(), factor: 1.0 },
    }
}

/// How many seconds a unit of time has.
fn seconds(unit: &str) -> Option<f64> {
    Some(match unit {
        "s" | "sec" | "second" => 1.0,
        "ms" | "msec" | "msecond" => 1e-3,
        "us" | "usec" | "usecond" | "µs" | "μs" => 1e-6,
        "ns" | "nsec" | "nsecond" => 1e-9,
        "ps" | "psecond" => 1e-12,
        "min" | "minute" => 60.0,
        _ => return None,
    })
}

/// `(8, 14, 1)` or `   8   14    1`.
pub fn three(cell: &[u8]) -> Option<[u32; 3]> {
    let text = std::str::from_utf8(cell).ok()?;
    let mut parts = text.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty()).map(str::parse);
    let all = [parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?];
    parts.next().is_none().then_some(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_as_profilers_print_them() {
        let table: &[(&str, Option<f64>)] = &[
            ("1,351,350,066", Some(1_351_350_066.0)),
            ("517.67", Some(517.67)),
            ("0.07", Some(0.07)),
            ("-3.5", Some(-3.5)),
            ("1e3", Some(1000.0)),
            ("2.5E-3", Some(0.0025)),
            ("123456789012345678", Some(123_456_789_012_345_678.0)),
            (" 12 ", Some(12.0)),
            ("12 (3; 4; 5)", Some(12.0)),
            ("45.1%", Some(45.1)),
            ("", None),
            ("n/a", None),
            ("nan", None),
            ("NaN", None),
            ("inf", None),
            ("-", None),
            (".", None),
            ("PolicySpread", None),
            ("(8, 14, 1)", None),
            ("65,77", None),
            ("1.234,5", None),
            ("1'234.5", Some(1234.5)),
        ];
        for (text, wanted) in table {
            assert_eq!(Decimal::Point.number(text.as_bytes()), *wanted, "{text}");
        }
    }

    #[test]
    fn numbers_with_a_decimal_comma() {
        let table: &[(&str, Option<f64>)] = &[
            ("1.351.350.066", Some(1_351_350_066.0)),
            ("1.234,5", Some(1234.5)),
            ("65,77", Some(65.77)),
            ("-0,5", Some(-0.5)),
            ("1,5e3", Some(1500.0)),
            ("1\u{a0}234,5", Some(1234.5)),
            ("1\u{202f}234\u{202f}567", Some(1_234_567.0)),
            ("45,1 %", Some(45.1)),
            ("12,5 (3; 4; 5)", Some(12.5)),
            ("65.77", None),
            ("n/a", None),
            (",", None),
        ];
        for (text, wanted) in table {
            assert_eq!(Decimal::Comma.number(text.as_bytes()), *wanted, "{text}");
        }
    }

    #[test]
    fn the_locale_is_that_of_the_numbers_that_decide() {
        for (cells, wanted) in [
            (&["1,234", "5,678"][..], Decimal::Point),
            (&["1,234", "65,77"], Decimal::Comma),
            (&["1.234", "0,123"], Decimal::Comma),
            (&["1.234.567"], Decimal::Comma),
            (&["1,234,567", "12"], Decimal::Point),
            (&["12345,678"], Decimal::Comma),
            (&["65.77", "1,234"], Decimal::Point),
            (&["(8, 14, 1)", "a,b", ""], Decimal::Point),
            (&["1.234", "12.345", "7"], Decimal::Comma),
            (&["1.234", "2.50"], Decimal::Point),
        ] {
            let mut votes = DecimalVotes::default();
            cells.iter().for_each(|cell| votes.count(cell.as_bytes()));
            assert_eq!(votes.decided(ThreeDigits::Thousands), wanted, "{cells:?}");
            let without = votes.point + votes.comma == 0;
            let fraction = if without { Decimal::Point } else { wanted };
            assert_eq!(votes.decided(ThreeDigits::Fraction), fraction, "{cells:?}");
        }
    }

    #[test]
    fn units_have_a_base() {
        for (unit, wanted, factor) in [
            ("ns", "ns", 1.0),
            ("us", "ns", 1e3),
            ("usecond", "ns", 1e3),
            ("ms", "ns", 1e6),
            ("s", "ns", 1e9),
            ("Kbyte", "byte", 1e3),
            ("Mbyte", "byte", 1e6),
            ("MB", "byte", 1e6),
            ("MiB", "byte", 1_048_576.0),
            ("Kbyte/block", "byte/block", 1e3),
            ("Tbyte/s", "byte/s", 1e12),
            ("byte/nsecond", "byte/s", 1e9),
            ("cycle/usecond", "cycle/s", 1e6),
            ("Ghz", "Hz", 1e9),
            ("%", "%", 1.0),
            ("register/thread", "register/thread", 1.0),
            ("Minst", "inst", 1e6),
            ("branches", "branches", 1.0),
            ("", "", 1.0),
        ] {
            let Scale { unit: base, factor: by } = base(unit);
            assert_eq!(base, wanted, "{unit}");
            assert!((by / factor - 1.0).abs() < 1e-12, "{unit}: {by}");
        }
    }

    #[test]
    fn grids_in_both_forms() {
        assert_eq!(three(b"(8, 14, 1)"), Some([8, 14, 1]));
        assert_eq!(three(b"   8   14    1"), Some([8, 14, 1]));
        assert_eq!(three(b"8, 14"), None);
        assert_eq!(three(b"(99999999999, 1, 1)"), None);
    }

    proptest! {
        #[test]
        fn numbers_are_parsed_as_rust_parses_them(value in -1e12f64..1e12, digits in 0usize..6) {
            let text = format!("{value:.digits$}");
            prop_assert_eq!(Decimal::Point.number(text.as_bytes()), text.parse().ok());
            let comma = text.replace('.', ",");
            prop_assert_eq!(Decimal::Comma.number(comma.as_bytes()), text.parse().ok());
        }

        #[test]
        fn any_bytes_are_a_finite_number_or_none(bytes in prop::collection::vec(any::<u8>(), 0..24)) {
            for decimal in [Decimal::Point, Decimal::Comma] {
                prop_assert!(decimal.number(&bytes).is_none_or(f64::is_finite));
            }
            let _ = three(&bytes);
            let _ = base(&String::from_utf8_lossy(&bytes));
        }
    }
}
