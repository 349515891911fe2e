//! `replay` and `demo`: a recording in the TUI.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, ValueEnum};

use super::{
    Failure,
    args::{ConfigArgs, resolve_run, runs_root},
    profile::{report_exit, require_terminal},
};
use crate::{
    base::shell::quoted,
    event::Stamp,
    fleet::read_recording,
    process::shutdown::Shutdown,
    rundir::{DISK_TIMEOUT, EventReader, Player, RunDir},
    tui::App,
};

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// A run directory or its events.ndjson; also latest, latest~1 or a part of its path
    run: PathBuf,
    /// Start at this time: seconds, or "end"
    #[arg(long, default_value = "0", value_name = "SECONDS|end")]
    at: StartAt,
    /// Playback speed at the start
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
}

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// The recording to play
    #[arg(default_value = "simulated")]
    recording: DemoRecording,
    /// Playback speed at the start
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
}

/// Where playback starts.
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
}

impl DemoRecording {
    fn bytes(self) -> &'static [u8] {
        match self {
            DemoRecording::Simulated => include_bytes!("../../assets/demo/events.ndjson"),
            DemoRecording::H200Prefill => include_bytes!("../../assets/demo/h200_prefill/events.ndjson"),
            DemoRecording::H200Decode => include_bytes!("../../assets/demo/h200_decode/events.ndjson"),
            DemoRecording::H200Kernels => include_bytes!("../../assets/demo/h200_kernels/events.ndjson"),
        }
    }
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
    play(player, Some(dir), args.at, args.speed).await
}

pub(super) async fn demo(args: DemoArgs) -> Result<u8, Failure> {
    let open = move || EventReader::embedded("the demo", args.recording.bytes());
    play(Player::open(open).map_err(Failure::work)?, None, StartAt::Second(0.0), args.speed).await
}

async fn play(mut player: Player, dir: Option<RunDir>, at: StartAt, speed: f64) -> Result<u8, Failure> {
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
    let app = App::of_recording(&tui, player, dir, runs_root(&composed));
    report_exit(app.run(tui.mouse, shutdown).await)
}
