//! The program on a real terminal: keys, mouse, sizes, and every way it can end.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    num::NonZeroU16,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use crate::common::terminal::{Terminal, sent_for};
use crate::common::{
    PROGRAM, environment, events, eventually, finished, program, record, run_dirs, signal, tiny_model,
};
use llmprof::{
    config::ThemeName,
    event::{Event, Outcome},
    report::NAMES,
    server::{KnownServer, Timing},
    tui::{
        keys::{BINDINGS, Binding, Mode},
        theme::{Depth, Glyphs, Theme},
        ui::{Action, Effect, Pane, RunCommand, RunsCommand},
    },
};
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use ratatui::style::Color;

/// Runs longer than any test.
const ENDLESS: [&str; 4] = ["runtime=sim", "runtime.warmup=0", "runtime.requests=200", "infer=long"];

/// For each pane, a text that only this pane of a live run shows.
const PANES: [(Pane, &str); 9] = [
    (Pane::Overview, "decode, mean"),
    (Pane::Why, "owners by cost"),
    (Pane::Gpu, "mem util"),
    (Pane::Tokens, "tokens · "),
    (Pane::Kernels, "╭ kernels"),
    (Pane::Roofline, "╭ roofline"),
    (Pane::Compare, "No snapshot yet"),
    (Pane::Runs, "newest first"),
    (Pane::Log, "ready after"),
];

fn live() -> Terminal {
    let terminal = Terminal::start(&ENDLESS);
    terminal.see("decode, mean");
    terminal.until("a number of tokens per second", |s| has_rate(&s.contents()));
    terminal
}

/// Whether "<number> now" or "<number> tok/s" is on the screen.
fn has_rate(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.windows(2).any(|w| ["now", "tok/s"].contains(&w[1]) && w[0].replace(',', "").parse::<f64>().is_ok())
}

/// Waits for a run directory besides `known`.
fn next_run(terminal: &Terminal, known: &[PathBuf]) -> PathBuf {
    eventually("a new run directory", || {
        run_dirs(terminal.path()).into_iter().find(|run| !known.contains(run))
    })
}

/// Twice: the first key asks while a run is in progress.
fn quit(terminal: &Terminal) {
    terminal.send("qq");
    assert_eq!(terminal.exit_code(), 0, "{}", terminal.text());
    terminal.assert_restored();
}

#[test]
fn quitting_restores_the_terminal_and_finishes_the_run() {
    let terminal = live();
    quit(&terminal);
    let runs = run_dirs(terminal.path());
    assert_eq!(runs.len(), 1);
    let end = finished(&runs[0]);
    assert_eq!((end.outcome, end.cause.as_deref()), (Outcome::Interrupted, Some("quit by the user")));
    assert!(terminal.text().contains("interrupted: recorded in runs/"), "{}", terminal.text());
}

#[test]
fn quitting_a_run_asks_first() {
    let terminal = live();
    terminal.press("q", "The run is in progress");
    terminal.send("\x1b");
    terminal.see_no("The run is in progress");
    terminal.press("q", "The run is in progress");
    terminal.send("q");
    assert_eq!(terminal.exit_code(), 0, "{}", terminal.text());
    terminal.assert_restored();
}

#[test]
fn panes_are_reached_by_number_tab_and_mouse() {
    let terminal = live();
    for (pane, shows) in PANES.iter().rev() {
        terminal.press(&pane.key().to_string(), shows);
    }
    for i in 1..=PANES.len() {
        terminal.press("\t", PANES[i % PANES.len()].1);
    }
    for i in (0..PANES.len()).rev() {
        terminal.press("\x1b[Z", PANES[i].1);
    }
    for (pane, shows) in PANES {
        terminal.click(&format!("{} {}", pane.key(), pane.title()));
        terminal.see(shows);
    }
    quit(&terminal);
}

/// A library that makes a directory named `stuck` never answer, like a network disk whose server is gone.
fn stuck_disk(dir: &Path) -> String {
    let (source, library) = (dir.join("stuck.c"), dir.join("stuck.so"));
    let code = r#"
        #define _GNU_SOURCE
        #include <dirent.h>
        #include <dlfcn.h>
        #include <string.h>
        #include <unistd.h>
        DIR *opendir(const char *name) {
            while (strstr(name, "/stuck")) pause();
            return ((DIR *(*)(const char *))dlsym(RTLD_NEXT, "opendir"))(name);
        }
    "#;
    fs::write(&source, code).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.unwrap().success());
    library.display().to_string()
}

#[test]
fn a_disk_that_does_not_answer_does_not_stop_the_screen() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), &["runtime.requests=1", "runtime.warmup=0"]);
    for name in ["stuck", "pipe", "device"] {
        fs::create_dir_all(dir.path().join("runs/disk").join(name)).unwrap();
    }
    let pipe = dir.path().join("runs/disk/pipe/events.ndjson");
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("runs/disk/device/events.ndjson")).unwrap();
    let library = stuck_disk(dir.path());
    let terminal = Terminal::start_in(dir, &ENDLESS, &[("LD_PRELOAD", &library)], (120, 40));
    terminal.see("● decode");
    terminal.send("7");
    terminal.press("8", "ready after");
    terminal.press("7", "disk/stuck does not answer");
    // The FIFO and the device have no end; this run is in progress, the other one has ended.
    terminal.see("running");
    terminal.see("power cap");
    assert_eq!(terminal.text().matches("no end").count(), 2, "{}", terminal.text());
    for _ in 0..4 {
        terminal.send("\x1b[A");
    }
    quit(&terminal);
}

#[test]
fn help_lists_every_key() {
    let terminal = Terminal::start_in(tempfile::tempdir().unwrap(), &ENDLESS, &[], (120, 140));
    terminal.see("decode, mean");
    // The last line.
    terminal.press("?", "the mouse wheel scrolls");
    let text = terminal.text();
    for binding in BINDINGS.iter() {
        assert!(text.contains(binding.help), "{:?} is not in\n{text}", binding.help);
    }
    terminal.send("\x1b");
    terminal.see_no("while replaying");
    quit(&terminal);
}

#[test]
fn files_of_kernels_have_a_screen() {
    let fixture = |name: &str| format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let (ncu, nsys) = (fixture("h200_ncu_details.csv"), fixture("nsys/kernels.sqlite"));
    let terminal = Terminal::start(&["kernels", &ncu, &nsys, "nowhere.csv"]);
    terminal.see("ncu kernels · 1 of 5");
    terminal.see("cannot read nowhere.csv");
    terminal.press("\r", "what bounds it");
    terminal.press("\x1b", "by family, largest first");
    terminal.press("l", "nsys kernels · 2 of 5");
    terminal.press("m", "by name, largest first");
    // The title of a column sorts by it; again, in reverse.
    for order in ["longest mean first", "shortest mean first", "longest mean first"] {
        terminal.click(" mean ");
        terminal.see(order);
    }
    terminal.press("/rope\r", "containing \"rope\"");
    terminal.press("K", "not available without a live run");
    terminal.press("1", "Overview is empty: no workload was measured");
    terminal.press("8", "cannot read nowhere.csv");
    terminal.send("q");
    assert_eq!(terminal.exit_code(), 1, "a file could not be read");
    terminal.assert_restored();
    assert!(run_dirs(terminal.path()).is_empty());
    let words = Terminal::start(&["kernels", &nsys, "--text"]);
    words.see("CUDA calls");
    assert_eq!(words.exit_code(), 0);
}

/// The exports in a directory by their endings, sorted.
fn endings(dir: &Path) -> Vec<String> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let ending = |name: &str| name.rsplit('.').next().unwrap_or("").to_owned();
    let mut endings: Vec<String> = files.map(|file| ending(&file.file_name().to_string_lossy())).collect();
    endings.sort();
    endings
}

#[test]
fn the_screen_is_exported_to_the_run_or_the_current_directory() {
    let three = ["csv", "svg", "txt"];
    let terminal = live();
    let run = run_dirs(terminal.path()).pop().unwrap();
    terminal.press("2x", "wrote gpu-");
    assert_eq!(endings(&run.join("exports")), three);
    fs::remove_dir_all(run.join("exports")).unwrap();
    fs::write(run.join("exports"), "in the way").unwrap();
    terminal.press("3x", "to exports; cannot");
    assert_eq!(endings(&terminal.path().join("exports")), three);
    fs::remove_dir_all(terminal.path().join("exports")).unwrap();
    fs::write(terminal.path().join("exports"), "in the way too").unwrap();
    terminal.press("1x", "cannot write runs/");
    quit(&terminal);
    // Printed again after the screen is left.
    assert!(terminal.text().contains("wrote gpu-"), "{}", terminal.text());

    let ncu = format!("{}/tests/fixtures/h200_ncu_details.csv", env!("CARGO_MANIFEST_DIR"));
    for (args, shows, wrote) in [
        (vec!["demo"], "simulated", "wrote overview-"),
        (vec!["kernels", &ncu], "ncu kernels", "wrote kernels.svg, .txt and .csv to exports"),
    ] {
        let terminal = Terminal::start(&args);
        terminal.see(shows);
        terminal.press("x", wrote);
        assert_eq!(endings(&terminal.path().join("exports")), three, "{args:?}");
        quit(&terminal);
    }

    let dir = tempfile::tempdir().unwrap();
    let run = record(dir.path(), &["runtime.requests=2"]);
    let terminal = Terminal::start_in(dir, &["replay", &run.to_string_lossy()], &[], (120, 40));
    terminal.see("decode, mean");
    terminal.press("8x", "wrote log-");
    assert_eq!(endings(&run.join("exports")), three);
    quit(&terminal);
    assert!(!terminal.path().join("exports").exists());
}

/// Whether the key asks depends on the selected run.
fn asks_about_a_run(binding: &Binding) -> bool {
    matches!(binding.action, Action::Do(Effect::Runs(RunsCommand::AskDelete | RunsCommand::AskName)))
}

/// Presses every key of the table on every pane, and closes overlays.
fn press_everything(terminal: &Terminal) {
    // A run without a server or without several GPUs does not have those panes.
    for pane in Pane::ALL.into_iter().filter(|pane| !pane.is_special()) {
        for binding in
            BINDINGS.iter().filter(|b| b.action != Action::Do(Effect::Quit) && !asks_about_a_run(b))
        {
            // The key before may have opened a replay.
            terminal.send(&format!("b{}", sent_for(pane.key())));
            for key in binding.keys {
                terminal.send(&sent_for(*key));
                let applies = binding.scope.applies(pane, Mode::Single);
                let opens = matches!(
                    binding.action,
                    Action::Help
                        | Action::Palette
                        | Action::Evidence
                        | Action::AskSnapshotName
                        | Action::AskFilter
                        | Action::Do(Effect::Run(RunCommand::AskRerun))
                        | Action::Do(Effect::Run(RunCommand::EditOverrides))
                );
                if opens && applies {
                    let what = format!("what {key} opens on {} ({})", pane.title(), binding.help);
                    terminal.until(&what, |screen| screen.contents().contains("Esc closes"));
                    terminal.send("\x1b");
                    terminal.see_no("Esc closes");
                }
            }
        }
    }
}

#[test]
fn every_key_works_on_every_pane() {
    let terminal = live();
    // Another run to open.
    record(terminal.path(), &["runtime.requests=2", "experiment=other"]);
    press_everything(&terminal);
    // The live run can always be returned to.
    terminal.send("b1");
    terminal.see("decode, mean");
    quit(&terminal);
}

#[test]
fn snapshots_are_kept_and_compared() {
    let terminal = live();
    for name in ["before", "after"] {
        terminal.press("s", "snapshot name");
        terminal.send(name);
        terminal.see(name);
        terminal.press("\r", &format!("snapshot {name} saved"));
        let run = &run_dirs(terminal.path())[0];
        let kept = run.join("snapshots").join(format!("{name}.json"));
        let kept: serde_json::Value = serde_json::from_slice(&fs::read(kept).unwrap()).unwrap();
        assert_eq!(kept["name"], name);
        let tokens = events(run).len();
        eventually("more tokens", || (events(run).len() > tokens + 50).then_some(()));
    }
    terminal.press("d", "95 % confidence intervals");
    terminal.until("both names and a difference", |screen| {
        let text = screen.contents();
        let decode = text.lines().find(|line| line.starts_with("│ decode")).unwrap_or_default();
        text.contains("before") && text.contains("after") && decode.contains('%')
    });
    quit(&terminal);
    let taken = events(&run_dirs(terminal.path())[0]);
    let taken = taken.iter().filter(|e| matches!(e.event, Event::Snapshot(_))).count();
    assert_eq!(taken, 2);
    // Reports made from the recording equal those of the live run.
    let recorded = &run_dirs(terminal.path())[0];
    let read = || NAMES.map(|name| fs::read(recorded.join(name)).ok());
    let live = read();
    NAMES.iter().for_each(|name| drop(fs::remove_file(recorded.join(name))));
    assert_eq!(crate::common::run(recorded, &["report", "."]).code, 0);
    assert!(live[0].is_some());
    for (name, (live, again)) in NAMES.into_iter().zip(live.into_iter().zip(read())) {
        assert!(live == again, "{name}");
    }
}

#[test]
fn edited_overrides_are_refused_in_place_or_start_a_new_run() {
    let terminal = live();
    let first = run_dirs(terminal.path());
    terminal.press("e", "overrides, as on the command line");
    terminal.see("runtime=sim runtime.warmup=0 runtime.requests=200 infer=long");
    terminal.press(" runtime.reqests=3\r", "unknown key");
    terminal.see("runtime.requests");
    assert_eq!(run_dirs(terminal.path()), first);
    terminal.send("\x15runtime=sim infer=long experiment=second\r");
    terminal.see_no("overrides, as on the command line");
    let second = next_run(&terminal, &first);
    assert!(second.to_string_lossy().contains("runs/second/"), "{}", second.display());
    let end = finished(&first[0]);
    assert_eq!(end.cause.as_deref(), Some("another run was started"));
    quit(&terminal);
}

#[test]
fn a_run_is_started_again_and_the_old_one_opened() {
    let terminal = live();
    let first = run_dirs(terminal.path());
    terminal.press("r", "End this run and start it again?");
    terminal.press("n", "decode, mean");
    assert_eq!(run_dirs(terminal.path()), first);
    terminal.press("r", "End this run and start it again?");
    terminal.send("y");
    next_run(&terminal, &first);
    terminal.press("7", "newest first");
    terminal.see("2 runs");
    terminal.press("\r", "this run is already on the screen");
    terminal.press("\x1b[B\r", "The run was interrupted: another run was started");
    terminal.send("b");
    terminal.see_no("another run was started");
    terminal.until("the live run", |s| has_rate(&s.contents()));
    quit(&terminal);
}

#[test]
fn the_workload_pauses_and_the_view_freezes() {
    let terminal = live();
    terminal.press("p", "paused");
    terminal.send("p");
    terminal.see_no("paused");
    terminal.press(" ", "view frozen");
    let run = &run_dirs(terminal.path())[0];
    let more_events = || {
        let so_far = events(run).len();
        eventually("more events", || (events(run).len() > so_far + 100).then_some(()));
    };
    // The frame may arrive in parts.
    more_events();
    let frozen = terminal.text();
    more_events();
    assert_eq!(terminal.text(), frozen);
    terminal.send(" ");
    terminal.see_no("view frozen");
    quit(&terminal);
    let events = events(run);
    for wanted in [Event::WorkloadPaused, Event::WorkloadResumed] {
        assert!(events.iter().any(|e| e.event == wanted), "{wanted:?}");
    }
}

#[test]
fn runs_and_log_are_filtered_and_sorted() {
    let terminal = live();
    terminal.press("7", "newest first");
    for order in ["fastest first", "lowest TTFT first", "lowest TPOT first", "by model", "newest first"] {
        terminal.press("o", order);
    }
    // The title of a column sorts too; again, it reverses.
    for (title, order) in
        [("tok/s", "fastest first"), ("tok/s", "slowest first"), ("TPOT ms", "lowest TPOT first")]
    {
        terminal.click(title);
        terminal.see(order);
    }
    terminal.press("/", "show only rows that contain");
    terminal.press("zzz\r", "no run contains this text");
    // The next search begins empty: no key clears it.
    terminal.press("/", "show only rows that contain");
    terminal.send("smoll\r");
    terminal.see("containing \"smoll\"");
    terminal.see_no("no run contains this text");
    terminal.press("8", "ready after");
    terminal.press("/", "show only rows that contain");
    terminal.send("zzz\r");
    terminal.see_no("ready after");
    // The next search begins empty, and Esc cancels it.
    terminal.press("/", "show only rows that contain");
    terminal.press("\x1b", "ready after");
    quit(&terminal);
}

#[test]
fn a_run_is_marked_and_another_compared_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let steady = ["runtime.requests=16", "infer=short", "runtime.sim.scenario=steady"];
    for itl in ["runtime.sim.itl_ms=3.8", "runtime.sim.itl_ms=4.4"] {
        record(dir.path(), &steady.iter().copied().chain([itl]).collect::<Vec<_>>());
    }
    let terminal = Terminal::start_in(dir, &ENDLESS, &[], (120, 40));
    terminal.see("decode, mean");
    terminal.press("7", "newest first");
    // Without a marked run, the snapshots are compared.
    terminal.press("d", "No snapshot yet");
    terminal.press("7", "newest first");
    terminal.press("\x1b[B\x1b[Bm", "marked as A; select another run");
    terminal.press("d", "this is the marked run");
    terminal.press("\x1b[Ad", "SLOWER  TPOT of B is 16 % higher");
    terminal.see("runtime.sim.itl_ms: 3.8 → 4.4 (intended)");
    // The snapshots again.
    terminal.press("d", "No snapshot yet");
    quit(&terminal);
}

#[test]
fn a_run_is_renamed_and_deleted_after_a_question() {
    let dir = tempfile::tempdir().unwrap();
    let run = record(dir.path(), &["runtime.requests=1", "runtime.warmup=0"]);
    let kept = record(dir.path(), &["runtime.requests=1", "runtime.warmup=0", "experiment=other"]);
    let terminal = Terminal::start_in(dir, &["demo"], &[("BROWSER", "false")], (120, 40));
    terminal.see("simulated");
    terminal.press("7", "runs · 2");
    terminal.press("/", "show only rows that contain");
    terminal.press("baseline\r", "runs · 1");
    terminal.press("W", "false failed (exit status: 1); open");
    terminal.press("N", "new name of the directory");
    terminal.press("\x15../mine\r", "a name does not start with '.'");
    terminal.press("\x15mine\r", "renamed to runs/baseline/smollm2_135m/mine");
    let renamed = run.with_file_name("mine");
    assert!(renamed.join("events.ndjson").exists() && !run.exists());
    terminal.see("mine sim");
    terminal.press("D", "Delete the run runs/baseline/smollm2_135m/mine (");
    // Enter does not delete.
    terminal.send("\rn");
    terminal.see_no("Delete the run");
    assert!(renamed.exists());
    terminal.press("\x1b[3~", "Delete the run runs/baseline/smollm2_135m/mine (");
    terminal.press("y", "deleted runs/baseline/smollm2_135m/mine");
    terminal.see("no run contains this text");
    assert!(!renamed.exists() && kept.join("events.ndjson").exists());
    quit(&terminal);
}

#[test]
fn a_run_that_is_being_recorded_is_not_deleted() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), &["runtime.requests=1", "runtime.warmup=0"]);
    let terminal = Terminal::start_in(dir, &ENDLESS, &[], (120, 40));
    terminal.see("decode, mean");
    terminal.press("7", "running");
    terminal.press("D", "this run is being recorded; end it first");
    terminal.press("N", "this run is being recorded; end it first");
    // Groups fold.
    terminal.send("\x1b[D");
    terminal.press("\r", "▸ baseline / smollm2_135m");
    terminal.press("\x1b[C", "▾ baseline / smollm2_135m");
    quit(&terminal);
    assert_eq!(run_dirs(terminal.path()).len(), 2);
}

#[test]
fn themes_cycle() {
    let terminal = live();
    let colours = |screen: &vt100::Screen| {
        let (rows, columns) = screen.size();
        let footer = (0..columns.get()).filter_map(|x| screen.cell(rows.get() - 1, x));
        footer.map(|c| (c.fgcolor(), c.bgcolor())).collect::<Vec<_>>()
    };
    let plain = |screen: &vt100::Screen| {
        colours(screen).iter().all(|c| *c == (vt100::Color::Default, vt100::Color::Default))
    };
    let dark = terminal.with(colours);
    let mut before = dark.clone();
    for theme in ["light", "high contrast"] {
        terminal.send("t");
        terminal.until(theme, |screen| colours(screen) != before && !plain(screen));
        before = terminal.with(colours);
    }
    terminal.send("t");
    terminal.until("no colour", plain);
    terminal.send("t");
    terminal.until("dark", |screen| colours(screen) == dark);
    quit(&terminal);
}

#[test]
fn charts_zoom() {
    let terminal = Terminal::start(&["runtime=sim", "runtime.requests=9999", "runtime.sim.speed=100"]);
    // The first label of the time axis.
    terminal.see(" -45 s ");
    terminal.press("+", " -20 s ");
    terminal.press("+", " -8 s ");
    terminal.press("-", " -20 s ");
    quit(&terminal);
}

/// Presses a button of the mouse, as the terminal sends it, in a cell counted from 0.
fn mouse(terminal: &Terminal, button: u8, (column, row): (u16, u16)) {
    terminal.send(&format!("\x1b[<{button};{};{}M", column + 1, row + 1));
}

#[test]
fn the_cursor_reads_the_charts_and_the_wheel_zooms() {
    let terminal = Terminal::start(&["runtime=sim", "runtime.requests=9999", "runtime.sim.speed=100"]);
    terminal.see(" -45 s ");
    // By key: Esc returns to the newest values.
    terminal.press("\x1b[D\x1b[D", " tok/s ─");
    terminal.see("at -");
    terminal.send("\x1b");
    terminal.see_no("at -");
    // By mouse: the column of the click has a line, which can be dragged.
    mouse(&terminal, 0, (60, 12));
    let is_line = |screen: &vt100::Screen, column| {
        (8..24).filter(|row| screen.cell(*row, column).is_some_and(|cell| cell.contents() == "│")).count() > 3
    };
    terminal.until("a line through the column of the click", |screen| is_line(screen, 60));
    mouse(&terminal, 32, (70, 12));
    terminal.until("the line where it was dragged to", |screen| is_line(screen, 70) && !is_line(screen, 60));
    terminal.send("\x1b");
    terminal.see_no("at -");
    mouse(&terminal, 64, (60, 12));
    terminal.see(" -20 s ");
    mouse(&terminal, 65, (60, 12));
    terminal.see(" -45 s ");
    quit(&terminal);
}

#[test]
fn rows_and_tokens_are_selected_by_click() {
    let terminal = live();
    terminal.press("2", "mem util");
    terminal.click("mem util");
    terminal.see("selected: memory utilisation");
    terminal.press("3", "tokens ·");
    terminal.until("many tokens", |screen| screen.contents().contains("tokens · last 9"));
    mouse(&terminal, 0, (30, 8));
    terminal.see("before the newest");
    terminal.press("G", "tokens · last");
    // Messages above the tabs stay in the log.
    terminal.press("s", "snap-1");
    terminal.send("\r");
    terminal.press("8", "screen");
    quit(&terminal);
}

#[test]
fn the_palette_finds_an_action_by_name() {
    let terminal = live();
    terminal.press(":", "find an action");
    terminal.press("roofl", "operators and kernels against");
    terminal.press("\r", "╭ roofline");
    // Ctrl-P opens it too, and Esc leaves everything as it was.
    terminal.press("\x10", "find an action");
    terminal.press("no such", "no action has this name");
    terminal.send("\x1b");
    terminal.see_no("find an action");
    terminal.see("╭ roofline");
    // Without colours the background is the terminal's own.
    let is_plain = |screen: &vt100::Screen| {
        screen.cell(1, 1).is_some_and(|cell| cell.bgcolor() == vt100::Color::Default)
    };
    assert!(!terminal.with(is_plain));
    terminal.press(":", "find an action");
    terminal.send("theme no-colour\r");
    terminal.until("the theme without colours", is_plain);
    quit(&terminal);
}

#[test]
fn any_size_is_drawn() {
    let terminal = live();
    terminal.resize(30, 8);
    terminal.until("a rate on a small screen", |s| has_rate(&s.contents()) && !s.contents().contains('╭'));
    for number in 1..=Pane::ALL.len() {
        terminal.send(&number.to_string());
    }
    terminal.send("?\x1b[B");
    // Closes the help, not the program.
    terminal.send("q");
    terminal.send("1");
    terminal.until("a rate on a small screen", |s| has_rate(&s.contents()));
    terminal.resize(10, 2);
    terminal.see("llmprof");
    for number in 1..=Pane::ALL.len() {
        terminal.send(&number.to_string());
    }
    terminal.send("1");
    terminal.resize(200, 50);
    terminal.see("decode, mean");
    terminal.until("the whole width", |s| {
        s.contents().lines().any(|line| line.chars().count() >= 199 && line.contains('╮'))
    });
    terminal.resize(120, 40);
    terminal.until("the old width", |s| {
        s.contents().contains("decode, mean") && s.contents().lines().all(|line| line.chars().count() <= 120)
    });
    quit(&terminal);
}

#[test]
fn signals_end_the_program() {
    let cases = [
        ("Ctrl-C", "Ctrl-C", 130),
        ("INT", "SIGINT", 130),
        ("TERM", "SIGTERM", 143),
        ("HUP", "SIGHUP: the terminal was closed", 129),
    ];
    for (how, cause, code) in cases {
        let terminal = live();
        match how {
            "Ctrl-C" => terminal.send("\x03"),
            name => terminal.signal(name),
        }
        assert_eq!(terminal.exit_code(), code, "{how}: {}", terminal.text());
        terminal.assert_restored();
        let end = finished(&run_dirs(terminal.path())[0]);
        assert_eq!((end.outcome, end.cause.as_deref()), (Outcome::Interrupted, Some(cause)), "{how}");
        assert!(terminal.text().contains(&format!("interrupted: {cause}")), "{how}: {}", terminal.text());
    }
}

#[test]
fn a_signal_during_a_prompt_or_help_ends_the_program() {
    for (key, shows) in [("s", "snapshot name"), ("?", "while profiling")] {
        let terminal = live();
        terminal.press(key, shows);
        terminal.send("\x03");
        assert_eq!(terminal.exit_code(), 130);
        terminal.assert_restored();
    }
}

#[test]
fn a_panic_restores_the_terminal_and_is_reported() {
    let tiny = [
        "model.config_json=tiny.json",
        "runtime.requests=100000",
        "infer.max_new_tokens=100",
        "dataset.prompt_tokens=8",
    ];
    let scenario = ["runtime=sim", "runtime.sim.scenario=panic", "runtime.sim.speed=50"];
    let mut cases: Vec<(&str, &[&str], &str)> = vec![("none", &scenario, "the engine panics here")];
    if llmprof::process::crash::FAULT_INJECTION {
        let requested = "requested by LLMPROF_FAULT";
        cases.extend([
            ("panic:engine", &ENDLESS[..], requested),
            ("panic:screen", &ENDLESS, requested),
            ("panic:consumer", &ENDLESS, requested),
            ("panic:sampler", &tiny, requested),
        ]);
    }
    for (fault, args, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        tiny_model(dir.path(), |_| ());
        let terminal = Terminal::start_in(dir, args, &[("LLMPROF_FAULT", fault)], (120, 40));
        assert_eq!(terminal.exit_code(), 1, "{fault}: {}", terminal.text());
        terminal.assert_restored();
        let run = &run_dirs(terminal.path())[0];
        let end = finished(run);
        assert_eq!(end.outcome, Outcome::Interrupted, "{fault}");
        assert!(end.cause.as_deref().is_some_and(|c| c.contains(words)), "{fault}: {end:?}");
        let text = terminal.text().replace('\n', "");
        assert!(text.contains(words), "{fault}: {text}");
        let log = fs::read_to_string(run.join("llmprof.log")).unwrap();
        assert!(log.contains(words), "{fault}: {log}");
    }
}

#[test]
fn a_failed_run_stays_on_the_screen_with_its_cause() {
    let terminal = Terminal::start(&["runtime=sim", "runtime.sim.scenario=fail", "runtime.sim.speed=50"]);
    terminal.see("failed");
    terminal.see("the engine fails here");
    terminal.press("p", "the run has finished");
    terminal.press("8", "the engine fails here");
    terminal.send("q");
    assert_eq!(terminal.exit_code(), 1, "{}", terminal.text());
    terminal.assert_restored();
    assert_eq!(finished(&run_dirs(terminal.path())[0]).outcome, Outcome::Failed);
}

/// The screen is open while the server dies.
#[test]
fn a_server_that_dies_fails_the_run_on_the_screen() {
    let timing =
        Timing { ttft: Duration::from_millis(40), itl: Duration::from_millis(10), tokens_per_chunk: 1 };
    let server = KnownServer::start(timing).unwrap();
    let url = format!("runtime.server.url=http://{}", server.address);
    let terminal = Terminal::start(&[
        "runtime=openai",
        "telemetry=none",
        "profiling=none",
        &url,
        "infer.max_new_tokens=8",
        "dataset.prompt_tokens=16",
        "runtime.requests=100000",
        "runtime.load.concurrency=4",
        "runtime.load.gives_up_s=0.5",
        // The end of the server is the only cause.
        "runtime.load.max_failures=1",
    ]);
    let header = |screen: &vt100::Screen| {
        let (_, columns) = screen.size();
        screen.rows(0, columns.get()).next().unwrap_or_default()
    };
    terminal.until("serving in the header", |screen| header(screen).contains("● serving"));
    terminal.press("1", "one stream, mean");
    eventually("answers", || (server.chunks.load(Ordering::Relaxed) > 100).then_some(()));
    drop(server);
    terminal.see("The run failed: the server stopped answering at");
    terminal.until("failed in the header", |screen| header(screen).contains("● failed"));
    let text = terminal.text();
    assert!(text.contains("(connection refused)"), "{text}");
    assert!(!text.contains("completed") && !text.contains("serving"), "{text}");
    // Terminals of 256 colours: the word has the colour of what is bad.
    let bad = Theme::new(ThemeName::Dark, Depth::Indexed, Glyphs::UNICODE).bad.fg;
    terminal.with(|screen| {
        let header = header(screen);
        let column = header[..header.find("failed").unwrap()].chars().count() as u16;
        let shown = screen.cell(0, column).map(|cell| cell.fgcolor());
        let Some(vt100::Color::Idx(shown)) = shown else { panic!("{shown:?}: {header}") };
        assert_eq!(Some(Color::Indexed(shown)), bad, "{header}");
    });
    terminal.press("8", "the server refuses connections");
    terminal.until("failed in the header", |screen| header(screen).contains("● failed"));
    terminal.send("q");
    assert_eq!(terminal.exit_code(), 1, "{}", terminal.text());
    terminal.assert_restored();
    let text = terminal.text();
    assert!(text.contains("error: the server stopped answering at"), "{text}");
    let end = finished(&run_dirs(terminal.path())[0]);
    assert_eq!(end.outcome, Outcome::Failed);
    assert!(end.cause.is_some_and(|cause| cause.starts_with("the server stopped answering at")));
}

#[test]
fn a_terminal_that_goes_away_ends_the_run() {
    // A session leader gets a signal; a program below a shell that stays alive does not.
    for start in [Terminal::start_alone, Terminal::start] {
        let mut terminal = start(&ENDLESS);
        terminal.until("tokens", |s| has_rate(&s.contents()));
        terminal.hang_up();
        assert_eq!(terminal.code_after_hang_up(), 129);
        let end = finished(&run_dirs(terminal.path())[0]);
        assert_eq!(end.outcome, Outcome::Interrupted);
        assert_eq!(end.cause.as_deref(), Some("SIGHUP: the terminal was closed"));
    }
}

#[test]
fn a_terminal_that_goes_away_ends_a_paused_replay() {
    let dir = tempfile::tempdir().unwrap();
    let run = record(dir.path(), &["runtime.requests=1"]).to_string_lossy().into_owned();
    let mut terminal = Terminal::start_in(dir, &["replay", "--at", "end", &run], &[], (120, 40));
    terminal.see("completed");
    terminal.hang_up();
    assert_eq!(terminal.code_after_hang_up(), 129);
}

/// The transport bar.
fn transport(screen: &vt100::Screen) -> String {
    let (rows, columns) = screen.size();
    screen.rows(0, columns.get()).nth(rows.get() as usize - 2).unwrap_or_default()
}

#[track_caller]
fn sees_transport(terminal: &Terminal, sign: &str, time: &str, status: &str) {
    terminal.until(&format!("transport {sign} {time} {status}"), |screen| {
        let line = transport(screen);
        line.trim_start().starts_with(&format!("{sign} {time}")) && line.contains(status)
    });
}

/// The keys of a replay, on a recording of at least 15 s that starts to play.
fn plays(terminal: &Terminal) {
    sees_transport(terminal, "▶", "00:0", "1×");
    terminal.send(">");
    sees_transport(terminal, "▶", "", "2×");
    terminal.send("<");
    sees_transport(terminal, "▶", "", "1×");
    terminal.send(" ");
    sees_transport(terminal, "⏸", "", "1×");
    terminal.send("\x1b[H");
    sees_transport(terminal, "⏸", "00:00", "");
    for (key, at) in [(".", "00:05"), (".", "00:10"), (",", "00:05"), (",", "00:00"), (",", "00:00")] {
        terminal.send(key);
        sees_transport(terminal, "⏸", at, "");
    }
    terminal.send("\x1b[F");
    terminal.until("the end", |screen| {
        let line = transport(screen);
        let mut times = line.split_whitespace().filter(|word| word.contains(':'));
        times.next().is_some_and(|at| at > "00:10" && times.next() == Some(at))
    });
    terminal.send("b");
    terminal.see("no live run to return to");
}

#[test]
fn a_click_on_the_transport_bar_seeks() {
    let terminal = Terminal::start(&["demo"]);
    terminal.see("simulated");
    terminal.send(" ");
    sees_transport(&terminal, "⏸", "", "1×");
    for speed in ["1×", "0.5×", "0.25×", "0.1×"] {
        sees_transport(&terminal, "⏸", "", speed);
        for column in [40, 90, 20] {
            terminal.send(&format!("\x1b[<0;{};39M\x1b[<0;{};39m", column + 1, column + 1));
            terminal.until(&format!("the knob in column {column} at {speed}"), |screen| {
                transport(screen).chars().position(|c| c == '●') == Some(column)
            });
        }
        terminal.send("<");
    }
    quit(&terminal);
}

#[test]
fn the_demo_plays() {
    let terminal = Terminal::start(&["demo"]);
    terminal.see("simulated");
    plays(&terminal);
    quit(&terminal);
    assert!(!terminal.path().join("runs").exists(), "a demo records nothing");
}

#[test]
fn a_recording_without_tokens_shows_the_panes_that_it_fills() {
    let dir = tempfile::tempdir().unwrap();
    let mut watch = crate::common::program(dir.path());
    watch.args(["watch", "--record", "--for", "600", "telemetry=sim"]);
    let mut watch = watch.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("samples of a GPU", || {
        let run = run_dirs(dir.path()).into_iter().next()?;
        events(&run).iter().any(|e| matches!(e.event, Event::GpuSample(_))).then_some(())
    });
    crate::common::signal(watch.id(), "INT");
    watch.wait().unwrap();
    let terminal = Terminal::start_in(dir, &["replay", "latest"], &[], (120, 40));
    terminal.see("mem util");
    terminal.until("tabs of panes with content", |screen| {
        let text = screen.contents();
        let footer = text.lines().last().unwrap_or_default();
        footer.contains("2 GPU  7 Runs") && footer.contains("empty") && !footer.contains("Tokens")
    });
    terminal.press("3", "Tokens is empty: no tokens in this run");
    terminal.press("\t", "newest first");
    quit(&terminal);
}

#[test]
fn a_recording_plays_and_every_key_works() {
    let dir = tempfile::tempdir().unwrap();
    let run = record(dir.path(), &["runtime.requests=60"]);
    let run = run.to_string_lossy().into_owned();
    let terminal = Terminal::start_in(dir, &["replay", &run], &[], (120, 40));
    plays(&terminal);
    terminal.press("4", "Kernels is empty: no kernels were recorded");
    let with_content = [Pane::Overview, Pane::Gpu, Pane::Tokens, Pane::Roofline, Pane::Runs, Pane::Log];
    for pane in with_content {
        for binding in
            BINDINGS.iter().filter(|b| !matches!(b.action, Action::Do(Effect::Quit) | Action::Help))
        {
            terminal.send(&pane.key().to_string());
            for key in binding.keys {
                if matches!(binding.action, Action::AskFilter | Action::Evidence | Action::Palette)
                    && binding.scope.applies(pane, Mode::Replay)
                {
                    terminal.press(&sent_for(*key), "Esc closes");
                    terminal.send("\x1b");
                    terminal.see_no("Esc closes");
                } else {
                    terminal.send(&sent_for(*key));
                }
            }
        }
    }
    terminal.press("1", "decode, mean");
    quit(&terminal);
}

#[test]
fn a_growing_recording_is_followed_and_a_killed_one_shown_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = program(dir.path());
    writer.args(["run", "output.flush_ms=50"]).args(ENDLESS).stdout(Stdio::null()).stderr(Stdio::null());
    let mut writer = writer.spawn().unwrap();
    let run = eventually("a recording", || {
        let run = run_dirs(dir.path()).pop()?;
        fs::metadata(run.join("events.ndjson")).is_ok_and(|m| m.len() > 0).then_some(run)
    });
    let path = run.to_string_lossy().into_owned();
    let terminal = Terminal::start_in(dir, &["replay", "--at", "end", &path], &[], (120, 40));
    terminal.see("following");
    let shown = || terminal.with(|s| transport(s).split_whitespace().nth(1).map(str::to_owned));
    let first = shown();
    eventually("a later time", || (shown() > first).then_some(()));
    signal(writer.id(), "KILL");
    writer.wait().unwrap();
    quit(&terminal);

    let whole = fs::read(run.join("events.ndjson")).unwrap();
    let torn = [whole.as_slice(), br#"{"t":99999999999,"e":{"tok"#].concat();
    fs::write(run.join("events.ndjson"), torn).unwrap();
    let last = events(&run).last().unwrap().t.secs() as u64;
    let again = tempfile::tempdir().unwrap();
    let again = Terminal::start_in(again, &["replay", "--at", "end", &path], &[], (160, 40));
    sees_transport(&again, "▶", &format!("{:02}:{:02}", last / 60, last % 60), "following");
    again.see("the recording ends within a line");
    again.until("its tokens", |s| has_rate(&s.contents()));
    quit(&again);
}

#[test]
fn a_file_that_is_not_a_recording_is_reported_without_a_screen() {
    for (content, words) in [
        (None, "a run is a directory with an events.ndjson"),
        (Some(""), "is empty"),
        (Some("hello\n"), "is not a recording"),
        (Some("{\"t\":0,\"e\":{\"run_started\":{\"schema\":99}}}\n"), "schema 99"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        if let Some(content) = content {
            fs::write(dir.path().join("events.ndjson"), content).unwrap();
        }
        let terminal = Terminal::start_in(dir, &["replay", "."], &[], (120, 40));
        assert_eq!(terminal.exit_code(), 1, "{words}");
        terminal.see(words);
    }
}

/// How often the bell of a terminal has rung.
#[derive(Default)]
struct Bell(u32);

impl vt100::Callbacks for Bell {
    fn audible_bell(&mut self, _: &mut vt100::Screen) {
        self.0 += 1;
    }
}

/// The program on a terminal that counts bells.
struct WithBell {
    shown: Arc<Mutex<vt100::Parser<Bell>>>,
    master: Box<dyn MasterPty + Send>,
    child: Box<dyn Child + Send + Sync>,
}

impl WithBell {
    fn start(dir: &Path, args: &[&str]) -> WithBell {
        let (rows, cols) = (40, 120);
        let pty =
            native_pty_system().openpty(PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }).unwrap();
        let mut command = CommandBuilder::new(PROGRAM);
        command.args(args);
        command.cwd(dir);
        command.env_clear();
        for (name, value) in environment(dir) {
            command.env(name, value);
        }
        command.env("TERM", "xterm-256color");
        let child = pty.slave.spawn_command(command).unwrap();
        drop(pty.slave);
        let [rows, cols] = [rows, cols].map(|n| NonZeroU16::new(n).unwrap());
        let shown = vt100::Parser::new_with_callbacks(rows, cols, 0, Bell::default());
        let shown = Arc::new(Mutex::new(shown));
        let (mut output, screen) = (pty.master.try_clone_reader().unwrap(), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut bytes = [0; 1 << 16];
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                screen.lock().unwrap().process(&bytes[..n]);
            }
        });
        WithBell { shown, master: pty.master, child }
    }

    #[track_caller]
    fn see(&self, text: &str) {
        let shows = || self.shown.lock().unwrap().screen().contents().contains(text).then_some(());
        eventually(text, shows);
    }

    fn rings(&self) -> u32 {
        self.shown.lock().unwrap().callbacks().0
    }
}

impl Drop for WithBell {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A vLLM server with `queued` queued requests.
fn queueing(queued: &Arc<AtomicU32>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let queued = Arc::clone(queued);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let queued = queued.load(Ordering::Relaxed);
            let page = format!("vllm:num_requests_running 1\nvllm:num_requests_waiting {queued}\n");
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
                page.len()
            );
        }
    });
    url
}

#[test]
fn a_watched_server_has_its_pane_first_and_an_alert_rings_the_bell() {
    let queued = Arc::new(AtomicU32::new(0));
    let url = queueing(&queued);
    let dir = tempfile::tempdir().unwrap();
    let mut terminal = WithBell::start(dir.path(), &["watch", "telemetry=none", &url, "--alert", "queued>3"]);
    // No key was pressed.
    terminal.see(&format!("vllm · {url}"));
    // Readings that cross no threshold are on the screen.
    terminal.see("│ queued ");
    assert_eq!(terminal.rings(), 0);
    queued.store(14, Ordering::Relaxed);
    eventually("the bell", || (terminal.rings() > 0).then_some(()));
    let mut keyboard = terminal.master.take_writer().unwrap();
    keyboard.write_all(b"8").unwrap();
    terminal.see(&format!("alert queued>3: 14.0 ({url})"));
    assert_eq!(terminal.rings(), 1, "it rings once");
    keyboard.write_all(b"q").unwrap();
    let ended = eventually("the end", || terminal.child.try_wait().unwrap());
    assert_eq!(ended.exit_code(), 0);
}

#[test]
fn a_run_under_nsys_is_followed_and_cancelled_by_its_key() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path(), |_| {});
    // Newer than any installed version; it hangs.
    let lines =
        "[ \"$1\" = --version ] && echo NVIDIA Nsight Systems version 2099.1.1 && exit\nexec sleep 600";
    crate::common::script(&dir.path().join("bin/nsys"), lines);
    let path = format!("{}:{}", dir.path().join("bin").display(), std::env::var("PATH").unwrap());
    let args =
        ["model.config_json=tiny.json", "runtime.device=cpu", "runtime.requests=100000", "telemetry=none"];
    let terminal = Terminal::start_in(dir, &args, &[("PATH", &path)], (120, 30));
    terminal.until("a number of tokens per second", |s| has_rate(&s.contents()));
    terminal.press("n", "nsys: starting");
    terminal.see("paused");
    terminal.press("p", "the workload is paused for nsys");
    terminal.press("c", "nsys is running; press its key to cancel it");
    terminal.press("n", "nsys was cancelled");
    terminal.see_no("paused");
    terminal.press("n", "nsys: starting");
    quit(&terminal);
    let run = run_dirs(terminal.path()).pop().unwrap();
    let command = fs::read_to_string(run.join("nsys-2/cmd.txt")).unwrap();
    assert!(command.contains("cancelled"), "{command}");
}
