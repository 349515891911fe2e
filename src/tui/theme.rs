//! Colours by meaning, and the glyphs a terminal can draw.

use std::env;

use ratatui::style::{Color, Modifier, Style};

use crate::{
    analysis::classify::Class,
    config::ThemeName,
    event::{Level, Outcome, Phase},
    model::OperatorKind,
};

/// The style of each meaning. Nothing else in the program names a colour.
#[derive(Debug, Clone, PartialEq)]
pub struct Theme {
    pub text: Style,
    /// Labels, units and other secondary text.
    pub dim: Style,
    pub border: Style,
    /// Titles, the selected tab, keys.
    pub accent: Style,
    pub number: Style,
    pub good: Style,
    pub warn: Style,
    pub bad: Style,
    pub prefill: Style,
    pub decode: Style,
    pub selected: Style,
    /// Lines of a chart, by quantity.
    pub power: Style,
    pub clock: Style,
    pub temperature: Style,
    pub memory: Style,
    pub utilisation: Style,
    /// From "at the median" to "far too slow".
    pub heat: [Style; 5],
    pub glyphs: Glyphs,
}

/// How many colours the terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    True,
    Indexed,
    Ansi,
}

impl Depth {
    /// From the environment of the terminal.
    pub fn of_terminal() -> Depth {
        let var = |name| env::var(name).unwrap_or_default();
        match (var("COLORTERM").as_str(), var("TERM")) {
            ("truecolor" | "24bit", _) => Depth::True,
            (_, term) if term.contains("256") || term.contains("kitty") || term.contains("alacritty") => {
                Depth::Indexed
            }
            _ => Depth::Ansi,
        }
    }

    /// The nearest colour at this depth.
    fn colour(self, rgb: u32) -> Color {
        let (r, g, b) = ((rgb >> 16) as u8, (rgb >> 8) as u8, rgb as u8);
        match self {
            Depth::True => Color::Rgb(r, g, b),
            Depth::Indexed => {
                let step = |c: u8| (u32::from(c) * 5 + 127) / 255;
                let spread = r.max(g).max(b) - r.min(g).min(b);
                let index = match spread {
                    0..12 => 232 + (u32::from(r) + u32::from(g) + u32::from(b)) / 3 * 23 / 255,
                    _ => 16 + 36 * step(r) + 6 * step(g) + step(b),
                };
                Color::Indexed(index as u8)
            }
            Depth::Ansi => {
                let bright = r.max(g).max(b);
                if bright - r.min(g).min(b) < 40 {
                    return if bright > 160 { Color::White } else { Color::DarkGray };
                }
                let half = bright / 2 + bright / 8;
                match (r > half, g > half, b > half) {
                    (true, true, false) => Color::Yellow,
                    (true, false, true) => Color::Magenta,
                    (false, true, true) => Color::Cyan,
                    (true, ..) => Color::Red,
                    (_, true, _) => Color::Green,
                    _ => Color::Blue,
                }
            }
        }
    }
}

/// For text, dim, border, accent, good, warn, bad, prefill, decode, power, clock, temperature, memory, utilisation.
type Roles<T> = [T; 14];

const DARK: (Roles<u32>, [u32; 5]) = (
    [
        0xd8dee9, 0x8a93a3, 0x4a5262, 0x88c0d0, 0xa3be8c, 0xebcb8b, 0xe06c75, 0xc099ff, 0x7aa2f7, 0xe5a06b,
        0x7fc7b5, 0xe78284, 0x9d9cf0, 0x8fb573,
    ],
    [0x5e8f8a, 0x8fb573, 0xe2c06b, 0xe5975a, 0xe5534b],
);

const LIGHT: (Roles<u32>, [u32; 5]) = (
    [
        0x24292f, 0x656d76, 0xb6bdc6, 0x0b6e83, 0x2f7d32, 0x9a5b00, 0xb3261e, 0x7a3fb0, 0x1f5fb0, 0xa85a12,
        0x0f766e, 0xb23a48, 0x5147b8, 0x4d7c0f,
    ],
    [0x3b8a82, 0x4d7c0f, 0xa67c00, 0xc2570c, 0xb3261e],
);

impl Theme {
    pub fn new(name: ThemeName, depth: Depth, glyphs: Glyphs) -> Theme {
        match name {
            ThemeName::Dark => Self::coloured(DARK, depth, glyphs),
            ThemeName::Light => Self::coloured(LIGHT, depth, glyphs),
            ThemeName::HighContrast => Self::high_contrast(glyphs),
            ThemeName::NoColour => Self::no_colour(glyphs),
        }
    }

    fn of_roles(roles: Roles<Style>, heat: [Style; 5], glyphs: Glyphs) -> Theme {
        let [text, dim, border, accent, good, warn, bad, prefill, decode, lines @ ..] = roles;
        let [power, clock, temperature, memory, utilisation] = lines;
        let number = text.add_modifier(Modifier::BOLD);
        let selected = accent.add_modifier(Modifier::REVERSED);
        Theme {
            text,
            dim,
            border,
            accent,
            number,
            good,
            warn,
            bad,
            prefill,
            decode,
            selected,
            power,
            clock,
            temperature,
            memory,
            utilisation,
            heat,
            glyphs,
        }
    }

    fn coloured((roles, heat): (Roles<u32>, [u32; 5]), depth: Depth, glyphs: Glyphs) -> Theme {
        let style = |rgb: u32| Style::new().fg(depth.colour(rgb));
        Self::of_roles(roles.map(style), heat.map(style), glyphs)
    }

    fn high_contrast(glyphs: Glyphs) -> Theme {
        let bold = |colour| Style::new().fg(colour).add_modifier(Modifier::BOLD);
        let white = Style::new().fg(Color::White);
        let [cyan, green, yellow, red, magenta] =
            [Color::LightCyan, Color::LightGreen, Color::LightYellow, Color::LightRed, Color::LightMagenta]
                .map(bold);
        let bad = red.add_modifier(Modifier::UNDERLINED);
        let roles =
            [white, white, white, cyan, green, yellow, bad, magenta, cyan, yellow, cyan, red, magenta, green];
        let heat = [bold(Color::White), green, yellow, magenta, red];
        let selected = Style::new().fg(Color::Black).bg(Color::White);
        Theme { selected, ..Self::of_roles(roles, heat, glyphs) }
    }

    /// Bold and dim instead of colours.
    fn no_colour(glyphs: Glyphs) -> Theme {
        let plain = Style::new();
        let (bold, dim) = (plain.add_modifier(Modifier::BOLD), plain.add_modifier(Modifier::DIM));
        let bad = bold.add_modifier(Modifier::UNDERLINED);
        let roles = [plain, dim, dim, bold, plain, bold, bad, bold, plain, plain, plain, plain, plain, plain];
        let heat = [dim, plain, plain, bold, bold.add_modifier(Modifier::REVERSED)];
        let selected = plain.add_modifier(Modifier::REVERSED);
        Theme { selected, ..Self::of_roles(roles, heat, glyphs) }
    }

    pub fn phase(&self, phase: Phase) -> Style {
        match phase {
            Phase::Prefill => self.prefill,
            Phase::Decode => self.decode,
            Phase::Preparing => self.warn,
            Phase::Idle => self.dim,
        }
    }

    /// By what a kernel computes.
    pub fn operator(&self, kind: Option<OperatorKind>) -> Style {
        match kind {
            Some(OperatorKind::Matmul) => self.decode,
            Some(OperatorKind::Attention) => self.prefill,
            Some(OperatorKind::Pointwise) => self.clock,
            Some(OperatorKind::Ends) => self.power,
            None => self.dim,
        }
    }

    /// By what bounds a kernel.
    pub fn class(&self, class: Class) -> Style {
        match class {
            Class::Memory => self.memory,
            Class::Compute => self.utilisation,
            Class::Balanced => self.good,
            Class::Latency => self.warn,
            Class::Launch => self.power,
        }
    }

    pub fn outcome(&self, outcome: Outcome) -> Style {
        match outcome {
            Outcome::Completed => self.good,
            Outcome::Interrupted => self.warn,
            Outcome::Failed => self.bad,
        }
    }

    pub fn level(&self, level: Level) -> Style {
        match level {
            Level::Info => self.dim,
            Level::Warn => self.warn,
            Level::Error => self.bad,
        }
    }
}

/// The theme to start with: as configured, unless the terminal or `NO_COLOR` rules out colours.
pub fn initial_theme(name: ThemeName) -> ThemeName {
    let no_colour = env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    if no_colour || env::var("TERM").is_ok_and(|t| t == "dumb") { ThemeName::NoColour } else { name }
}

fn locale_is_utf8() -> bool {
    let set = |name: &str| env::var(name).ok().filter(|v| !v.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
    // Without a locale, UTF-8 is assumed.
    locale.is_none_or(|l| l.to_lowercase().replace('-', "").contains("utf8"))
}

/// The characters for drawing, beyond letters and digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Glyphs {
    pub ascii: bool,
    /// Eight heights from low to full.
    pub bars: [&'static str; 8],
    pub dot: &'static str,
    pub hollow_dot: &'static str,
    /// Marks an incident below.
    pub mark: &'static str,
    pub separator: &'static str,
    pub first_token: &'static str,
    pub pointer: &'static str,
    pub active: &'static str,
    pub none: &'static str,
    pub line: &'static str,
    pub knob: &'static str,
    pub play: &'static str,
    pub pause: &'static str,
}

impl Glyphs {
    /// As configured, otherwise by the locale.
    pub fn for_terminal(ascii: Option<bool>) -> Glyphs {
        if ascii.unwrap_or_else(|| !locale_is_utf8()) { Glyphs::ASCII } else { Glyphs::UNICODE }
    }

    pub const UNICODE: Glyphs = Glyphs {
        ascii: false,
        bars: ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
        dot: "●",
        hollow_dot: "○",
        mark: "▼",
        separator: "·",
        first_token: "┃",
        pointer: "▸",
        active: "▒",
        none: "–",
        line: "─",
        knob: "●",
        play: "▶",
        pause: "⏸",
    };

    pub const ASCII: Glyphs = Glyphs {
        ascii: true,
        bars: ["_", ".", "-", "=", "+", "*", "%", "#"],
        dot: "*",
        hollow_dot: ".",
        mark: "!",
        separator: "-",
        first_token: "|",
        pointer: ">",
        active: "#",
        none: "-",
        line: "-",
        knob: "o",
        play: ">",
        pause: "=",
    };

    /// Text with the characters that this terminal can show.
    pub fn plain(self, text: &str) -> String {
        if !self.ascii {
            return text.to_owned();
        }
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '·' => out.push('-'),
                '–' | '—' => out.push('-'),
                '…' => out.push_str("..."),
                '×' => out.push('x'),
                'µ' => out.push('u'),
                '°' => {}
                '→' => out.push_str("->"),
                '←' => out.push_str("<-"),
                '↑' => out.push_str("up"),
                '↓' => out.push_str("down"),
                'Δ' => out.push('d'),
                c if c.is_ascii() => out.push(c),
                _ => out.push('?'),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_warn_and_bad_differ_at_every_colour_depth() {
        for depth in [Depth::True, Depth::Indexed, Depth::Ansi] {
            let theme = Theme::new(ThemeName::Dark, depth, Glyphs::UNICODE);
            let mut seen = vec![theme.good.fg, theme.warn.fg, theme.bad.fg];
            seen.dedup();
            assert_eq!(seen.len(), 3, "{depth:?}");
        }
    }

    #[test]
    fn the_theme_without_colour_has_none() {
        let theme = Theme::new(ThemeName::NoColour, Depth::True, Glyphs::UNICODE);
        for style in [theme.good, theme.bad, theme.accent, theme.selected, theme.heat[4]] {
            assert_eq!((style.fg, style.bg), (None, None));
        }
    }

    #[test]
    fn ascii_glyphs_are_ascii() {
        let g = Glyphs::ASCII;
        let all = [
            g.dot,
            g.hollow_dot,
            g.mark,
            g.separator,
            g.first_token,
            g.pointer,
            g.active,
            g.none,
            g.line,
            g.knob,
            g.play,
            g.pause,
        ];
        assert!(all.iter().chain(&g.bars).all(|s| s.is_ascii()));
        assert!(g.plain("3.8 µs · 49 °C → 1×… ▂").is_ascii());
    }
}
