//! Makes the README's pictures from the demo recording, and one from a recording made on a GPU:
//! `cargo run --example pictures`. Every pane at three sizes in two themes is written to docs/pictures/panes, Runs with runs that are
//! simulated here.

use std::{error::Error, fs, path::Path, process::Command};

use llmprof::{
    analysis::compare::{Options, compare},
    config::ThemeName,
    event::Stamp,
    rundir::{EventReader, Player, list_runs},
    state::Snapshot,
    tui::{
        frame::Frame,
        run_tree::RunTree,
        svg::{Paper, animated_svg, svg},
        theme::{Depth, Glyphs, Theme},
        ui::{Arrangement, Overlay, Pane, UiState},
        view::View,
    },
};
use ratatui::{buffer::Buffer, layout::Rect, widgets::Widget};

const DEMO: &str = "assets/demo/events.ndjson";
/// Qwen2.5-7B in bf16.
const H200: &str = "tests/fixtures/h200_qwen2_5_7b/events.ndjson";

/// The same with long prompts.
const H200_PREFILL: &str = "assets/demo/h200_prefill/events.ndjson";

/// Its kernels, as they ran and under ncu.
const H200_KERNELS: &str = "assets/demo/h200_kernels/events.ndjson";

/// File name, recording, pane, moment in seconds, size, theme. The picture `evidence` has that opened.
type Picture = (&'static str, &'static str, Pane, f64, (u16, u16), ThemeName);

const PICTURES: [Picture; 11] = [
    ("why", H200_KERNELS, Pane::Why, 60.0, (130, 36), ThemeName::Dark),
    ("h200", H200, Pane::Overview, 20.0, (110, 30), ThemeName::Dark),
    ("h200-gpu", H200_PREFILL, Pane::Gpu, 20.0, (110, 34), ThemeName::Dark),
    ("evidence", H200_PREFILL, Pane::Overview, 20.0, (124, 42), ThemeName::Dark),
    ("kernels", H200_KERNELS, Pane::Kernels, 1.2, (130, 36), ThemeName::Dark),
    ("roofline", H200_KERNELS, Pane::Roofline, 60.0, (130, 36), ThemeName::Dark),
    ("overview", DEMO, Pane::Overview, 78.0, (110, 30), ThemeName::Dark),
    ("gpu", DEMO, Pane::Gpu, 95.0, (110, 30), ThemeName::Dark),
    ("tokens", DEMO, Pane::Tokens, 65.2, (110, 30), ThemeName::Dark),
    ("compare", DEMO, Pane::Compare, 95.0, (110, 24), ThemeName::Dark),
    ("overview-light", DEMO, Pane::Overview, 78.0, (110, 30), ThemeName::Light),
];

/// Every pane: the recording and the moment that shows it best.
const PANES: [(&str, &str, Pane, f64); 9] = [
    ("why", H200_KERNELS, Pane::Why, 60.0),
    ("overview", H200_PREFILL, Pane::Overview, 20.0),
    ("gpu", H200_PREFILL, Pane::Gpu, 20.0),
    ("tokens", DEMO, Pane::Tokens, 65.2),
    ("kernels", H200_KERNELS, Pane::Kernels, 1.2),
    ("roofline", H200_KERNELS, Pane::Roofline, 60.0),
    ("compare", DEMO, Pane::Compare, 95.0),
    ("runs", DEMO, Pane::Runs, 95.0),
    ("log", DEMO, Pane::Log, 95.0),
];
const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 50)];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::create_dir_all(root.join("docs/pictures"))?;
    for picture in PICTURES {
        let path = root.join(format!("docs/pictures/{}.svg", picture.0));
        fs::write(&path, drawn(root, picture)?)?;
        println!("docs/pictures/{}.svg", picture.0);
    }
    let screens: Result<Vec<Buffer>, Box<dyn Error>> = PANES
        .into_iter()
        .filter(|(_, _, pane, _)| !matches!(pane, Pane::Runs | Pane::Log))
        .map(|(name, recording, pane, at)| {
            screen(root, (name, recording, pane, at, (120, 36), ThemeName::Dark))
        })
        .collect();
    fs::write(root.join("docs/pictures/tour.svg"), animated_svg(&screens?, 4.0, Paper::DARK))?;
    every_pane(root, &root.join("docs/pictures/panes"))
}

fn every_pane(root: &Path, dir: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(dir)?;
    let _runs = record_runs()?;
    for (name, recording, pane, at) in PANES {
        for (width, height) in SIZES {
            for (theme, suffix) in [(ThemeName::Dark, "dark"), (ThemeName::Light, "light")] {
                let picture = drawn(root, (name, recording, pane, at, (width, height), theme))?;
                fs::write(dir.join(format!("{name}-{width}x{height}-{suffix}.svg")), picture)?;
            }
        }
    }
    Ok(())
}

/// Records simulated runs and a sweep below `runs` in an empty directory, which becomes the current one.
fn record_runs() -> Result<tempfile::TempDir, Box<dyn Error>> {
    let program = std::env::current_exe()?.with_file_name("../llmprof-tui");
    let dir = tempfile::tempdir()?;
    std::env::set_current_dir(dir.path())?;
    for overrides in [
        "model=qwen2_5_7b runtime.requests=6",
        "model=qwen2_5_7b runtime.requests=6 model.dtype=f16",
        "experiment=heat model=qwen2_5_7b runtime.requests=8 runtime.sim.scenario=thermal",
        "-m model=qwen3_0_6b runtime.batch_size=1,2,4,8 runtime.requests=4",
        "model=smollm2_135m runtime.requests=6",
        "model=smollm2_135m runtime.requests=6 infer=long",
    ] {
        let mut run = Command::new(&program);
        run.args(["run", "--quiet", "runtime=sim", "runtime.sim.speed=0", "runtime.warmup=1"]);
        let done = run.args(overrides.split(' ')).output()?;
        if !done.status.success() {
            return Err(format!("{overrides}: {}", String::from_utf8_lossy(&done.stderr)).into());
        }
    }
    Ok(dir)
}

/// The picture as SVG.
fn drawn(root: &Path, picture: Picture) -> Result<String, Box<dyn Error>> {
    let paper = if picture.5 == ThemeName::Light { Paper::LIGHT } else { Paper::DARK };
    Ok(svg(&screen(root, picture)?, paper))
}

/// The screen of a picture.
fn screen(root: &Path, picture: Picture) -> Result<Buffer, Box<dyn Error>> {
    let (name, recording, pane, at, (width, height), theme_name) = picture;
    let path = root.join(recording);
    let mut player = Player::open(move || EventReader::open(&path))?;
    player.seek(Stamp::from_secs_f64(at))?;
    let theme = Theme::new(theme_name, Depth::True, Glyphs::UNICODE);
    let overlay = match name {
        "evidence" => Overlay::Evidence { scroll: 0 },
        _ => Overlay::None,
    };
    let ui = UiState { pane, overlay, ..UiState::new(theme_name) };
    let snapshots: Vec<Snapshot> = player.state().snapshots.iter().cloned().collect();
    let comparison = match &snapshots[..] {
        [.., a, b] => {
            a.sample.as_ref().zip(b.sample.as_ref()).map(|(a, b)| compare(a, b, &Options::default()))
        }
        _ => None,
    };
    let runs = match pane {
        Pane::Runs => RunTree::new(list_runs(Path::new("runs")), Arrangement::default()),
        _ => RunTree::default(),
    };
    let view = View {
        runs: &runs,
        snapshots: &snapshots,
        comparison: comparison.as_ref(),
        ..View::new(player.state(), &ui, &theme)
    };
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    Frame(view).render(area, &mut buffer);
    Ok(buffer)
}
