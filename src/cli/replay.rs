//! `replay` and `demo`: a recording in the TUI.

use std::{borrow::Cow, io::Read, path::PathBuf, str::FromStr, sync::Arc};

use clap::{Args, ValueEnum};

use super::{
    Failure,
    args::{ConfigArgs, resolve_run, runs_root},
    outcome::report_exit,
    require_terminal,
};
use llmprof_app::App;
use llmprof_base::{gz, process::shutdown::Shutdown, shell::quoted};
use llmprof_event::Stamp;
use llmprof_record::rundir::{DISK_TIMEOUT, EventReader, Player, RunDir};
use llmprof_screen::ui::Pane;
use llmprof_sources::fleet::read_recording;

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// Run directory or its events.ndjson; also latest, latest~1 or a part of its path
    run: PathBuf,
    /// Start at this time, in seconds, or at "end"
    #[arg(long, default_value = "0", value_name = "SECONDS|end")]
    at: StartAt,
    /// Set the initial playback speed
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
}

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Recording to play
    #[arg(default_value = "simulated")]
    recording: DemoRecording,
    /// Set the initial playback speed
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
}

/// The start of playback.
#[derive(Debug, Clone, Copy)]
enum StartAt {
    Second(f64),
    End,
}

impl FromStr for StartAt {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<StartAt, &'static str> {
        match text {
            "end" => Ok(StartAt::End),
            _ => match text.parse::<f64>() {
                Ok(secs) if secs >= 0.0 && secs.is_finite() => Ok(StartAt::Second(secs)),
                _ => Err("expected a number of seconds or \"end\""),
            },
        }
    }
}

/// The recordings built into the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DemoRecording {
    /// A simulated GPU that overheats
    Simulated,
    /// Qwen2.5-7B on an H200 with long prompts: power-capped
    H200Prefill,
    /// Qwen2.5-7B on an H200 with long outputs: not throttled
    H200Decode,
    /// Qwen2.5-7B on an H200: kernels recorded live, and ncu counters of the most expensive
    H200Kernels,
    /// vLLM 0.24 on an H200 with the shape of Qwen2.5-7B: cold start, then 16 concurrent requests
    Vllm,
}

impl DemoRecording {
    fn bytes(self) -> Cow<'static, [u8]> {
        let plain: &[u8] = match self {
            DemoRecording::Vllm => {
                return Cow::Owned(unpacked(include_bytes!("../../assets/demo/vllm/events.ndjson.gz")));
            }
            DemoRecording::Simulated => include_bytes!("../../assets/demo/events.ndjson"),
            DemoRecording::H200Prefill => include_bytes!("../../assets/demo/h200_prefill/events.ndjson"),
            DemoRecording::H200Decode => include_bytes!("../../assets/demo/h200_decode/events.ndjson"),
            DemoRecording::H200Kernels => include_bytes!("../../assets/demo/h200_kernels/events.ndjson"),
        };
        Cow::Borrowed(plain)
    }

    /// The start of playback: a server takes a minute to start.
    fn start(self) -> StartAt {
        StartAt::Second(if self == DemoRecording::Vllm { 58.0 } else { 0.0 })
    }

    /// The pane that shows its subject.
    fn pane(self) -> Option<Pane> {
        match self {
            DemoRecording::H200Kernels => Some(Pane::Kernels),
            _ => None,
        }
    }
}

fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    // It is part of the program, so it is valid.
    let _ = gz::decompressed(packed).read_to_end(&mut bytes);
    bytes
}

pub(super) async fn run(args: ReplayArgs) -> Result<u8, Failure> {
    let dir = RunDir::open(&resolve_run(&args.run)?);
    let events = dir.events();
    let player = Player::open(move || EventReader::open_within(&events, DISK_TIMEOUT));
    let player = player.map_err(|e| match read_recording(&args.run) {
        Ok(_) => {
            let file = args.run.display().to_string();
            Failure::usage(format_args!(
                "{file} is a recording of a fleet: llmprof-tui fleet --replay {}",
                quoted(&file)
            ))
        }
        Err(_) => Failure::work(e),
    })?;
    play(player, Some(dir), args.at, args.speed, None).await
}

pub(super) async fn demo(args: DemoArgs) -> Result<u8, Failure> {
    let recording = args.recording;
    let bytes: Arc<[u8]> = recording.bytes().into();
    let open = move || EventReader::embedded("the demo", Arc::clone(&bytes));
    let player = Player::open(open).map_err(Failure::work)?;
    play(player, None, recording.start(), args.speed, recording.pane()).await
}

async fn play(
    mut player: Player,
    dir: Option<RunDir>,
    at: StartAt,
    speed: f64,
    pane: Option<Pane>,
) -> Result<u8, Failure> {
    require_terminal("llmprof-tui run, or read the run's report.md")?;
    if !(speed > 0.0 && speed.is_finite()) {
        return Err(Failure::usage(format_args!("--speed {speed}: expected a number above 0")));
    }
    let composed = ConfigArgs::default().compose()?;
    player.speed = speed;
    match at {
        StartAt::End => player.to_end(),
        StartAt::Second(secs) => player.seek(Stamp::from_secs_f64(secs)).map_err(Failure::work)?,
    }
    let tui = composed.config.output.tui.clone();
    let shutdown = Shutdown::listen()?;
    let mut app = App::of_recording(&tui, player, dir, runs_root(&composed));
    app.open(pane);
    report_exit(app.run(tui.mouse, shutdown).await)
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_record::{rundir::Next, state::RunState};

    fn played(recording: DemoRecording) -> RunState {
        let mut reader = EventReader::embedded("the demo", recording.bytes().into()).unwrap();
        let mut state = RunState::default();
        while let Ok(Next::Event(envelope)) = reader.read_next() {
            state.apply(&envelope);
        }
        state
    }

    #[test]
    fn each_demo_opens_the_pane_that_it_is_about() {
        let panes: Vec<_> = DemoRecording::value_variants().iter().map(|demo| demo.pane()).collect();
        assert_eq!(panes, [None, None, None, Some(Pane::Kernels), None]);
    }

    #[test]
    fn the_recording_of_vllm_keeps_its_numbers() {
        let state = played(DemoRecording::Vllm);
        assert!(state.load_tested().is_some() && state.finished.is_some());
        let tok_s = state.total.output_tok_s().unwrap();
        assert!((2_500.0..2_700.0).contains(&tok_s), "{tok_s}");
        let verdict = state.verdict().unwrap();
        assert!(verdict.starts_with("The server answers "), "{verdict}");
        let decode = &state.kernels.decode.total;
        let per_step = decode.launches as f64 / decode.steps as f64;
        assert!((390.0..400.0).contains(&per_step), "{per_step} launches a step");
        let step_ms = decode.busy_ns as f64 / decode.steps as f64 / 1e6;
        assert!((4.7..5.0).contains(&step_ms), "{step_ms} ms in kernels a step");
        // No kernel of a decode step is longer than the LM head.
        let longest = decode.rows.iter().filter_map(|row| row.max_ns).fold(0.0, f64::max);
        assert!(longest < 300_000.0, "{longest}");
    }
}
