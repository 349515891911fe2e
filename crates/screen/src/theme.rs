//! Colours by meaning, and the glyphs that a terminal can draw.

use std::env;

use ratatui::style::{Color, Modifier, Style};

use llm_cost::OperatorKind;
use llmprof_analysis::classify::Class;
use llmprof_config::{ChartStyle, ThemeName, TuiConfig};
use llmprof_event::{Level, Outcome, Phase, reasons};

/// The style of each meaning. Nothing else in the program names a colour.
#[derive(Debug, Clone, PartialEq)]
pub struct Theme {
    /// The background and the default text of the whole screen.
    pub ground: Style,
    pub text: Style,
    /// Labels, units and other secondary text.
    pub dim: Style,
    pub border: Style,
    /// The line of a limit in a chart.
    pub limit: Style,
    /// Titles, the selected tab, keys.
    pub accent: Style,
    pub number: Style,
    pub good: Style,
    pub warn: Style,
    pub bad: Style,
    pub prefill: Style,
    pub decode: Style,
    /// The background of a selected row or cell, which keeps its colours.
    pub selected: Style,
    /// The name of the program, and the current tab.
    pub badge: Style,
    /// Lines of a chart, by quantity.
    pub power: Style,
    pub clock: Style,
    pub temperature: Style,
    pub memory: Style,
    pub utilisation: Style,
    /// From "at the median" to "far too slow".
    pub heat: [Style; 5],
    /// From "far from the limit" to "at the limit".
    load: Ramp,
    pub glyphs: Glyphs,
}

/// Styles from 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub enum Ramp {
    /// Colours at equal distances, mixed between them.
    Mixed { stops: Vec<u32>, depth: Depth },
    /// Equal parts with a style each, if colours cannot be mixed.
    Steps(Vec<Style>),
}

impl Ramp {
    /// The style at `share`, from 0 to 1.
    pub fn at(&self, share: f32) -> Style {
        let share = share.clamp(0.0, 1.0);
        match self {
            Ramp::Steps(steps) => steps[((share * steps.len() as f32) as usize).min(steps.len() - 1)],
            Ramp::Mixed { stops, depth } => {
                let place = share * (stops.len() - 1) as f32;
                let from = (place as usize).min(stops.len() - 2);
                let rgb = mixed(stops[from], stops[from + 1], place - from as f32);
                Style::new().fg(depth.colour(rgb))
            }
        }
    }
}

/// The mixture of `from` and `to`: 0 is `from`, 1 is `to`.
fn mixed(from: u32, to: u32, part: f32) -> u32 {
    let channel = |shift: u32| {
        let (a, b) = ((from >> shift & 0xff) as f32, (to >> shift & 0xff) as f32);
        ((a + (b - a) * part).round() as u32) << shift
    };
    channel(16) | channel(8) | channel(0)
}

/// The number of colours that the terminal can show.
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

    /// The nearest colour at this depth. Sixteen colours have their own themes.
    fn colour(self, rgb: u32) -> Color {
        let (r, g, b) = ((rgb >> 16) as u8, (rgb >> 8) as u8, rgb as u8);
        match self {
            Depth::True | Depth::Ansi => Color::Rgb(r, g, b),
            Depth::Indexed if r.max(g).max(b) - r.min(g).min(b) < 12 => {
                let grey = (u32::from(r) + u32::from(g) + u32::from(b)) / 3;
                Color::Indexed(match grey {
                    0..4 => 16,
                    4..247 => 232 + ((grey.max(8) - 8 + 5) / 10).min(23) as u8,
                    _ => 231,
                })
            }
            Depth::Indexed => {
                // The levels of the colour cube.
                const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
                let level = |c: u8| (0..6u8).min_by_key(|n| LEVELS[*n as usize].abs_diff(c)).unwrap_or(0);
                Color::Indexed(16 + 36 * level(r) + 6 * level(g) + level(b))
            }
        }
    }
}

/// For text, dim, border, accent, good, warn, bad, prefill, decode, power, clock, temperature, memory, utilisation.
type Roles<T> = [T; 14];

/// The colours of a theme.
#[derive(Clone, Copy)]
struct Palette {
    ground: u32,
    /// The background of a selected row.
    selection: u32,
    roles: Roles<u32>,
    heat: [u32; 5],
    load: [u32; 5],
}

const DARK: Palette = Palette {
    ground: 0x14171c,
    selection: 0x282c32,
    roles: [
        0xd8dee9, 0x98a1b1, 0x4a5262, 0x88c0d0, 0xa3be8c, 0xebcb8b, 0xee7f86, 0xc099ff, 0x7aa2f7, 0xe5a06b,
        0x7fc7b5, 0xe78284, 0x9d9cf0, 0x8fb573,
    ],
    heat: [0x5e8f8a, 0x8fb573, 0xe2c06b, 0xe5975a, 0xe5534b],
    load: [0x2f6f73, 0x4f9a86, 0x9bb36b, 0xe2b45f, 0xe0635a],
};

const LIGHT: Palette = Palette {
    ground: 0xffffff,
    selection: 0xe9ecf0,
    roles: [
        0x24292f, 0x5a5f66, 0xb6bdc6, 0x0b5f72, 0x1f6b24, 0x825000, 0xa8201a, 0x6a2fa0, 0x1f57a0, 0x8a4a10,
        0x0b5f58, 0x9c1f33, 0x4a40ac, 0x42690d,
    ],
    heat: [0x3b8a82, 0x4d7c0f, 0xa67c00, 0xc2570c, 0xb3261e],
    load: [0x9fd3cd, 0x6fb7a6, 0xa7b65a, 0xd99a3c, 0xc2412f],
};

impl Theme {
    pub fn new(name: ThemeName, depth: Depth, glyphs: Glyphs) -> Theme {
        match (name, depth) {
            (ThemeName::Dark, Depth::Ansi) => Self::dark_in_sixteen_colours(glyphs),
            (ThemeName::Dark, _) => Self::coloured(DARK, depth, glyphs),
            (ThemeName::Light, Depth::Ansi) => Self::light_in_sixteen_colours(glyphs),
            (ThemeName::Light, _) => Self::coloured(LIGHT, depth, glyphs),
            (ThemeName::HighContrast, _) => Self::high_contrast(glyphs),
            (ThemeName::NoColour, _) => Self::no_colour(glyphs),
        }
    }

    fn of_roles(ground: Style, roles: Roles<Style>, heat: [Style; 5], load: Ramp, glyphs: Glyphs) -> Theme {
        let [text, dim, border, accent, good, warn, bad, prefill, decode, lines @ ..] = roles;
        let [power, clock, temperature, memory, utilisation] = lines;
        let number = text.add_modifier(Modifier::BOLD);
        let selected = accent.add_modifier(Modifier::REVERSED);
        let badge = selected;
        Theme {
            ground,
            text,
            dim,
            border,
            limit: bad,
            accent,
            number,
            good,
            warn,
            bad,
            prefill,
            decode,
            selected,
            badge,
            power,
            clock,
            temperature,
            memory,
            utilisation,
            heat,
            load,
            glyphs,
        }
    }

    fn coloured(palette: Palette, depth: Depth, glyphs: Glyphs) -> Theme {
        let style = |rgb: u32| Style::new().fg(depth.colour(rgb));
        let ground = style(palette.roles[0]).bg(depth.colour(palette.ground));
        let load = Ramp::Mixed { stops: palette.load.to_vec(), depth };
        let theme = Self::of_roles(ground, palette.roles.map(style), palette.heat.map(style), load, glyphs);
        let selected = Style::new().bg(depth.colour(palette.selection)).add_modifier(Modifier::BOLD);
        Theme { selected, ..theme }
    }

    fn dark_in_sixteen_colours(glyphs: Glyphs) -> Theme {
        let style = |colour| Style::new().fg(colour);
        let [white, grey, dark_grey] = [Color::White, Color::Gray, Color::DarkGray].map(style);
        let [cyan, green, yellow, red, magenta, blue] = [
            Color::LightCyan,
            Color::LightGreen,
            Color::LightYellow,
            Color::LightRed,
            Color::LightMagenta,
            Color::LightBlue,
        ]
        .map(style);
        let orange = style(Color::Yellow);
        let roles = [
            white, grey, dark_grey, cyan, green, yellow, red, magenta, blue, orange, cyan, red, magenta,
            green,
        ];
        let heat = [style(Color::Cyan), green, yellow, orange, red];
        let load = Ramp::Steps(vec![style(Color::Cyan), green, orange, red]);
        Self::of_roles(white.bg(Color::Black), roles, heat, load, glyphs)
    }

    /// Uses only those of the sixteen colours that are legible on white.
    fn light_in_sixteen_colours(glyphs: Glyphs) -> Theme {
        let [black, grey, blue, magenta, red] =
            [Color::Black, Color::DarkGray, Color::Blue, Color::Magenta, Color::Red]
                .map(|colour| Style::new().fg(colour));
        let roles =
            [black, grey, grey, blue, blue, magenta, red, magenta, blue, magenta, blue, red, magenta, blue];
        let heat = [grey, blue, magenta, magenta, red];
        let load = Ramp::Steps(vec![blue, blue, magenta, red]);
        Self::of_roles(black.bg(Color::White), roles, heat, load, glyphs)
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
        let ground = white.bg(Color::Black);
        Theme {
            selected,
            badge: selected,
            ..Self::of_roles(ground, roles, heat, Ramp::Steps(vec![white]), glyphs)
        }
    }

    /// Bold and dim instead of colours.
    fn no_colour(glyphs: Glyphs) -> Theme {
        let plain = Style::new();
        let (bold, dim) = (plain.add_modifier(Modifier::BOLD), plain.add_modifier(Modifier::DIM));
        let bad = bold.add_modifier(Modifier::UNDERLINED);
        let roles = [plain, dim, dim, bold, plain, bold, bad, bold, plain, plain, plain, plain, plain, plain];
        let heat = [dim, plain, plain, bold, bold.add_modifier(Modifier::REVERSED)];
        let selected = plain.add_modifier(Modifier::REVERSED);
        Theme { selected, ..Self::of_roles(plain, roles, heat, Ramp::Steps(vec![plain]), glyphs) }
    }

    /// The colours of a quantity that has a limit, by its share of the limit.
    pub fn load(&self) -> Ramp {
        self.load.clone()
    }

    /// A background with a hint of a colour; none if colours cannot be mixed.
    pub fn tint(&self, style: Style) -> Style {
        match self.faded(style, 0.12) {
            Some(rgb) => Style::new().bg(Depth::True.colour(rgb)),
            None => Style::new(),
        }
    }

    /// The sides of a comparison, A and B.
    pub fn sides(&self) -> [Style; 2] {
        [self.power, self.decode]
    }

    /// Whether the sides have different colours.
    pub fn sides_differ(&self) -> bool {
        let [a, b] = self.sides();
        a.fg != b.fg
    }

    /// The style where both sides of a comparison overlap.
    pub fn both_sides(&self) -> Style {
        let [a, b] = self.sides();
        match (a.fg, b.fg) {
            (Some(Color::Rgb(r, g, b)), Some(Color::Rgb(r2, g2, b2))) => {
                let [a, b] = [[0, r, g, b], [0, r2, g2, b2]].map(u32::from_be_bytes);
                Style::new().fg(Depth::True.colour(mixed(a, b, 0.5)))
            }
            _ => self.dim,
        }
    }

    /// The shades of one colour: darker at the foot of a chart.
    pub fn shades(&self, style: Style) -> Ramp {
        match (self.faded(style, 0.45), self.faded(style, 1.0)) {
            (Some(foot), Some(top)) => Ramp::Mixed { stops: vec![foot, top], depth: Depth::True },
            _ => Ramp::Steps(vec![style]),
        }
    }

    /// A fainter version of a style's colour: dim if colours cannot be mixed.
    pub fn faint(&self, style: Style) -> Style {
        match self.faded(style, 0.5) {
            Some(rgb) => style.fg(Depth::True.colour(rgb)),
            None => style.add_modifier(Modifier::DIM),
        }
    }

    /// A part of a style's colour on the background; `None` if these cannot be mixed.
    fn faded(&self, style: Style, part: f32) -> Option<u32> {
        let (Color::Rgb(r, g, b), Color::Rgb(ground_r, ground_g, ground_b)) = (style.fg?, self.ground.bg?)
        else {
            return None;
        };
        let ground = u32::from_be_bytes([0, ground_r, ground_g, ground_b]);
        Some(mixed(ground, u32::from_be_bytes([0, r, g, b]), part))
    }

    pub fn phase(&self, phase: Phase) -> Style {
        match phase {
            Phase::Vision | Phase::Mixed => self.accent,
            Phase::Prefill => self.prefill,
            Phase::Decode => self.decode,
            Phase::Preparing => self.warn,
            Phase::Idle => self.dim,
        }
    }

    /// The style of a kernel by its kind of operator.
    pub fn operator(&self, kind: Option<OperatorKind>) -> Style {
        match kind {
            Some(OperatorKind::Matmul) => self.decode,
            Some(OperatorKind::Attention) => self.prefill,
            Some(OperatorKind::Pointwise) => self.clock,
            Some(OperatorKind::Ends) => self.power,
            None => self.dim,
        }
    }

    /// The style of a clock limit.
    pub fn reason(&self, bit: u64) -> Style {
        match bit {
            reasons::SW_POWER_CAP => self.power,
            reasons::HW_POWER_BRAKE => self.warn,
            bit if bit & reasons::THERMAL != 0 => self.temperature,
            reasons::HW_SLOWDOWN => self.bad,
            reasons::SYNC_BOOST => self.prefill,
            _ => self.dim,
        }
    }

    /// The style of a bound class.
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
        self.tone(outcome.tone())
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

/// The resolution of charts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    Styled(ChartStyle),
    /// As blocks, with ASCII characters.
    Ascii,
}

impl Resolution {
    /// Columns per cell.
    pub fn columns(self) -> usize {
        match self {
            Resolution::Styled(ChartStyle::Block) | Resolution::Ascii => 1,
            Resolution::Styled(ChartStyle::Quadrant | ChartStyle::Braille) => 2,
        }
    }

    /// Steps of height per cell.
    pub fn rows(self) -> usize {
        match self {
            Resolution::Styled(ChartStyle::Block) | Resolution::Ascii => 8,
            Resolution::Styled(ChartStyle::Braille) => 4,
            Resolution::Styled(ChartStyle::Quadrant) => 2,
        }
    }
}

/// The characters for drawing, beyond letters and digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Glyphs {
    pub ascii: bool,
    pub chart: Resolution,
    /// Eight heights from low to full.
    pub bars: [&'static str; 8],
    pub dot: &'static str,
    pub hollow_dot: &'static str,
    /// Marks an incident.
    pub mark: &'static str,
    pub separator: &'static str,
    pub first_token: &'static str,
    /// Also marks a folded group.
    pub pointer: &'static str,
    /// Marks a group whose rows are below it.
    pub unfolded: &'static str,
    pub active: &'static str,
    pub none: &'static str,
    pub line: &'static str,
    pub knob: &'static str,
    pub play: &'static str,
    pub pause: &'static str,
}

impl Glyphs {
    /// As configured, otherwise by the locale.
    pub fn for_terminal(config: &TuiConfig) -> Glyphs {
        match config.ascii.unwrap_or_else(|| !locale_is_utf8()) {
            true => Glyphs::ASCII,
            false => Glyphs { chart: Resolution::Styled(config.charts), ..Glyphs::UNICODE },
        }
    }

    pub const UNICODE: Glyphs = Glyphs {
        ascii: false,
        chart: Resolution::Styled(ChartStyle::Block),
        bars: ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
        dot: "●",
        hollow_dot: "○",
        mark: "▼",
        separator: "·",
        first_token: "┃",
        pointer: "▸",
        unfolded: "▾",
        active: "▒",
        none: "–",
        line: "─",
        knob: "●",
        play: "▶",
        pause: "⏸",
    };

    pub const ASCII: Glyphs = Glyphs {
        ascii: true,
        chart: Resolution::Ascii,
        bars: ["_", ".", "-", "=", "+", "*", "%", "#"],
        dot: "*",
        hollow_dot: ".",
        mark: "!",
        separator: "-",
        first_token: "|",
        pointer: ">",
        unfolded: "v",
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
                '≠' => out.push_str("!="),
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

    /// The colour that a terminal shows, with the usual values of the sixteen.
    fn rgb(colour: Color) -> [u8; 3] {
        match colour {
            Color::Rgb(r, g, b) => [r, g, b],
            Color::Indexed(i @ 232..) => [8 + 10 * (i - 232); 3],
            Color::Indexed(i @ 16..) => {
                let level = |n: u8| if n == 0 { 0 } else { 55 + 40 * n };
                [level((i - 16) / 36), level((i - 16) / 6 % 6), level((i - 16) % 6)]
            }
            Color::Black => [0, 0, 0],
            Color::DarkGray => [0x55, 0x57, 0x53],
            Color::Gray => [0xd3, 0xd7, 0xcf],
            Color::White => [0xff, 0xff, 0xff],
            Color::Red => [0xcc, 0, 0],
            Color::Green => [0x4e, 0x9a, 0x06],
            Color::Yellow => [0xc4, 0xa0, 0],
            Color::Blue => [0x34, 0x65, 0xa4],
            Color::Magenta => [0x75, 0x50, 0x7b],
            Color::Cyan => [0x06, 0x98, 0x9a],
            Color::LightRed => [0xef, 0x29, 0x29],
            Color::LightGreen => [0x8a, 0xe2, 0x34],
            Color::LightYellow => [0xfc, 0xe9, 0x4f],
            Color::LightMagenta => [0xad, 0x7f, 0xa8],
            Color::LightCyan => [0x34, 0xe2, 0xe2],
            Color::LightBlue => [0x72, 0x9f, 0xcf],
            other => panic!("{other:?} is not a colour of a theme"),
        }
    }

    /// By the definition of the Web Content Accessibility Guidelines.
    fn contrast(a: Color, b: Color) -> f64 {
        let luminance = |colour: Color| {
            let linear = |c: u8| match f64::from(c) / 255.0 {
                c if c <= 0.04045 => c / 12.92,
                c => ((c + 0.055) / 1.055).powf(2.4),
            };
            let [r, g, b] = rgb(colour).map(linear);
            0.2126 * r + 0.7152 * g + 0.0722 * b
        };
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn every_text_can_be_read_on_its_background() {
        let mut poor = Vec::new();
        for name in [ThemeName::Dark, ThemeName::Light, ThemeName::HighContrast] {
            for depth in [Depth::True, Depth::Indexed, Depth::Ansi] {
                let t = Theme::new(name, depth, Glyphs::UNICODE);
                let ground = t.ground.bg.unwrap();
                let texts = [
                    ("text", t.text),
                    ("dim", t.dim),
                    ("accent", t.accent),
                    ("number", t.number),
                    ("good", t.good),
                    ("warn", t.warn),
                    ("bad", t.bad),
                    ("prefill", t.prefill),
                    ("decode", t.decode),
                    ("power", t.power),
                    ("clock", t.clock),
                    ("temperature", t.temperature),
                    ("memory", t.memory),
                    ("utilisation", t.utilisation),
                ];
                let selection = t.selected.bg.filter(|_| t.selected.fg.is_none());
                for (role, style) in texts {
                    let text = style.fg.unwrap();
                    for (place, back) in [("ground", Some(ground)), ("selection", selection)] {
                        let Some(back) = back else { continue };
                        let ratio = contrast(text, back);
                        if ratio < 4.5 {
                            poor.push(format!("{name:?} {depth:?}: {role} on {place} {ratio:.2}"));
                        }
                    }
                }
            }
        }
        assert!(poor.is_empty(), "{}", poor.join("\n"));
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
