//! Makes the README's pictures from the demo recording: `cargo run --example pictures`.

use std::{error::Error, fs, path::Path};

use llmprof::{
    config::ThemeName,
    event::Stamp,
    rundir::{EventReader, Player},
    state::Snapshot,
    tui::{
        frame::Frame,
        svg::{Paper, svg},
        theme::{Depth, Glyphs, Theme},
        ui::{Pane, UiState},
        view::View,
    },
};
use ratatui::{buffer::Buffer, layout::Rect, widgets::Widget};

/// File name, pane, moment in seconds, size, theme.
type Picture = (&'static str, Pane, f64, (u16, u16), ThemeName);

const PICTURES: [Picture; 5] = [
    ("overview", Pane::Overview, 78.0, (110, 30), ThemeName::Dark),
    ("gpu", Pane::Gpu, 95.0, (110, 30), ThemeName::Dark),
    ("tokens", Pane::Tokens, 65.2, (110, 30), ThemeName::Dark),
    ("compare", Pane::Compare, 95.0, (110, 24), ThemeName::Dark),
    ("overview-light", Pane::Overview, 78.0, (110, 30), ThemeName::Light),
];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recording = root.join("assets/demo/events.ndjson");
    fs::create_dir_all(root.join("docs/pictures"))?;
    for (name, pane, at, (width, height), theme_name) in PICTURES {
        let path = recording.clone();
        let mut player = Player::open(move || EventReader::open(&path))?;
        player.seek(Stamp::from_secs_f64(at))?;
        let theme = Theme::new(theme_name, Depth::True, Glyphs::UNICODE);
        let ui = UiState { pane, ..UiState::new(theme_name) };
        let snapshots: Vec<Snapshot> = player.state().snapshots.iter().cloned().collect();
        let view = View {
            state: player.state(),
            ui: &ui,
            theme: &theme,
            replay: None,
            frozen: false,
            waiting: None,
            loss: None,
            runs: &[],
            snapshots: &snapshots,
            sweep: None,
        };
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        Frame(view).render(area, &mut buffer);
        let paper = if theme_name == ThemeName::Light { Paper::LIGHT } else { Paper::DARK };
        fs::write(root.join(format!("docs/pictures/{name}.svg")), svg(&buffer, paper))?;
        println!("docs/pictures/{name}.svg");
    }
    Ok(())
}
