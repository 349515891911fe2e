//! A doctor report as text and as JSON.

use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

use super::{Check, Machine, Report, Status, host};
use llmprof_base::foreign;

/// How to print text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    pub colours: bool,
    /// Whether characters beyond ASCII are allowed.
    pub unicode: bool,
    /// Wrap lines to this many columns; `None` does not wrap.
    pub columns: Option<usize>,
}

impl Style {
    /// The style for stdout of `machine`; `terminal` is whether that is a terminal.
    pub fn for_machine(machine: &Machine, terminal: bool) -> Style {
        let plain = machine.variable("NO_COLOR").is_some() || machine.variable("TERM") == Some("dumb");
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| machine.variable(name));
        Style {
            colours: terminal && !plain,
            unicode: locale.is_some_and(host::is_utf8),
            columns: machine.screen.size.filter(|_| terminal).map(|(columns, _)| usize::from(columns)),
        }
    }

    fn symbol(self, status: Status) -> &'static str {
        match (status, self.unicode) {
            (Status::Pass, true) => "✓",
            (Status::Pass, false) => "+",
            (Status::Warn, _) => "!",
            (Status::Fail, true) => "✗",
            (Status::Fail, false) => "x",
            (Status::Skip, true) => "–",
            (Status::Skip, false) => "-",
        }
    }

    fn coloured(self, status: Status, text: &str) -> String {
        let code = match status {
            _ if !self.colours => return text.to_owned(),
            Status::Pass => "32",
            Status::Warn => "33",
            Status::Fail => "31",
            Status::Skip => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// One line per check with its remedy below, then a summary.
pub fn text(report: &Report, style: Style) -> String {
    let width = report.checks.iter().map(|check| check.id.len()).max().unwrap_or(0);
    let mut out = String::new();
    for check in &merge_skipped(&report.checks) {
        out += &lines_of(check, width, style);
    }
    out += &format!("\n{}\n", summary(report));
    if style.unicode { out } else { ascii(&out) }
}

/// The checks, with neighbours that were skipped for the same reason merged into one.
fn merge_skipped(checks: &[Check]) -> Vec<Check> {
    let same = |a: &Check, b: &Check| {
        a.finding == b.finding && a.finding.status == Status::Skip && a.finding.remedy.is_none()
    };
    let merge = |group: &[Check]| {
        let mut first = group[0].clone();
        if group.len() > 1 {
            let others: Vec<&str> = group[1..].iter().map(|check| check.id).collect();
            first.finding.found += &format!("; also {}", others.join(", "));
        }
        first
    };
    checks.chunk_by(same).map(merge).collect()
}

fn lines_of(check: &Check, width: usize, style: Style) -> String {
    let finding = &check.finding;
    let status =
        style.coloured(finding.status, &format!("{} {}", style.symbol(finding.status), finding.status));
    // The width of the symbol, the status and the gaps around the name.
    let indent = 6 + 2 + width + 2;
    let room = style.columns.map_or(usize::MAX, |columns| columns.saturating_sub(indent).max(20));
    let mut lines = wrapped(&foreign::line(&finding.found, foreign::MAX_LINE), room);
    let arrow = if style.unicode { "→ " } else { "> " };
    for (i, line) in finding
        .remedy
        .iter()
        .flat_map(|remedy| wrapped(&foreign::line(remedy, foreign::MAX_LINE), room - 2))
        .enumerate()
    {
        lines.push(format!("{}{line}", if i == 0 { arrow } else { "  " }));
    }
    let mut out = format!("{status}  {:<width$}  {}\n", check.id, lines.first().map_or("", String::as_str));
    for line in lines.iter().skip(1) {
        out += &format!("{:indent$}{line}\n", "");
    }
    out
}

fn summary(report: &Report) -> String {
    let counts: Vec<String> =
        Status::ALL.iter().map(|status| format!("{} {status}", report.count(*status))).collect();
    let mut out = counts.join(", ");
    out += match report.exit_code() {
        0 if report.count(Status::Warn) == 0 => ": no problems.",
        0 => ": usable, with warnings.",
        _ => ": a check failed.",
    };
    let works = |id| report.finding(id).is_some_and(|finding| finding.status == Status::Pass);
    if !report.gpu && works("cpu_engine") {
        out += " No GPU to use: models run on the CPU, and every screen and report works.";
    }
    out
}

/// A report as a JSON object.
pub fn json(report: &Report) -> Value {
    let check = |check: &Check| {
        json!({
            "id": check.id,
            "status": check.finding.status,
            "found": check.finding.found,
            "remedy": check.finding.remedy,
            "ms": (check.duration.as_secs_f64() * 1e4).round() / 10.0,
        })
    };
    let count = |status: &Status| (status.to_string(), json!(report.count(*status)));
    json!({
        "schema": 1,
        "program": format!("llmprof-tui {}", env!("CARGO_PKG_VERSION")),
        "checks": report.checks.iter().map(check).collect::<Vec<_>>(),
        "summary": Status::ALL.iter().map(count).collect::<serde_json::Map<_, _>>(),
    })
}

/// Wraps text between words; a word that is too long is not split.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The closest ASCII text.
fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '–' | '−' => out.push('-'),
            '×' => out.push('x'),
            '°' => {}
            'µ' => out.push('u'),
            '…' => out.push_str("..."),
            c if c.is_ascii() => out.push(c),
            _ => out.push('?'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::doctor::Finding;

    const PLAIN: Style = Style { colours: false, unicode: true, columns: None };

    fn report() -> Report {
        let check = |id, finding| Check { id, finding, duration: Duration::from_micros(1_234) };
        Report {
            checks: vec![
                check("cpu_engine", Finding::pass("works")),
                check("nsys", Finding::warn("not found").remedy("install it, or add its directory to PATH")),
                check("gpu", Finding::skip("no GPU – 80×24")),
            ],
            gpu: false,
        }
    }

    #[test]
    fn a_table() {
        assert_eq!(
            text(&report(), PLAIN),
            "✓ pass  cpu_engine  works\n\
             ! warn  nsys        not found\n\
             \x20                   → install it, or add its directory to PATH\n\
             – skip  gpu         no GPU – 80×24\n\n\
             1 pass, 1 warn, 0 fail, 1 skip: usable, with warnings. No GPU to use: models run on the CPU, and \
             every screen and report works.\n"
        );
        let ascii = text(&report(), Style { unicode: false, ..PLAIN });
        assert!(ascii.is_ascii() && ascii.contains("- skip  gpu         no GPU - 80x24"), "{ascii}");
    }

    #[test]
    fn checks_skipped_for_the_same_reason_share_a_line() {
        let mut report = report();
        for id in ["gpm", "pcie"] {
            report.checks.push(Check {
                id,
                finding: report.checks[2].finding.clone(),
                duration: Duration::ZERO,
            });
        }
        let text = text(&report, PLAIN);
        assert!(text.contains("gpu         no GPU – 80×24; also gpm, pcie\n"), "{text}");
        assert!(text.contains("3 skip"), "{text}");
    }

    #[test]
    fn colours_only_where_they_are_wanted() {
        let coloured = text(&report(), Style { colours: true, ..PLAIN });
        assert!(coloured.contains("\x1b[33m! warn\x1b[0m  nsys"), "{coloured}");
        assert!(!text(&report(), PLAIN).contains('\x1b'));
    }

    #[test]
    fn lines_fit_the_terminal() {
        let narrow = text(&report(), Style { columns: Some(44), ..PLAIN });
        let table = narrow.split("\n\n").next().unwrap();
        assert!(table.lines().all(|line| line.width() <= 44), "{narrow}");
        assert!(table.contains("→ install it, or add its\n                      directory"), "{narrow}");
    }

    #[test]
    fn an_object() {
        let object = json(&report());
        assert_eq!(object["program"], concat!("llmprof-tui ", env!("CARGO_PKG_VERSION")));
        let check =
            json!({"id": "cpu_engine", "status": "pass", "found": "works", "remedy": null, "ms": 1.2});
        assert_eq!((&object["schema"], &object["checks"][0]), (&json!(1), &check));
        assert_eq!(object["summary"], json!({"pass": 1, "warn": 1, "fail": 0, "skip": 1}));
    }
}
