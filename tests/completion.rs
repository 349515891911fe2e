//! Completion in real shells: the scripts that the program prints, calling the built program.

use std::{
    io::{Read, Write},
    num::NonZero,
    path::Path,
    process::Command,
    sync::mpsc,
    time::{Duration, Instant},
};

use crate::common::{PATIENCE, PROGRAM, program};
use portable_pty::{CommandBuilder, PtySize, native_pty_system};

/// A `PATH` with the program first.
fn path() -> String {
    let dir = Path::new(PROGRAM).parent().unwrap().display();
    format!("{dir}:{}", std::env::var("PATH").unwrap_or_default())
}

fn output_of(command: &mut Command) -> String {
    let output = command.env("PATH", path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout).unwrap()
}

/// What bash would insert for the word at the end of `line`, each candidate in brackets.
fn bash(dir: &Path, line: &str) -> Vec<String> {
    const ASK: &str = r#"
        eval "$(llmprof-tui completion bash)" || exit
        complete -p llmprof-tui >/dev/null || exit
        COMP_LINE=$1 COMP_POINT=${#1}
        _llmprof_tui llmprof-tui
        [ ${#COMPREPLY[@]} = 0 ] || printf '[%s]\n' "${COMPREPLY[@]}"
    "#;
    let mut ask = Command::new("bash");
    let output = output_of(ask.args(["--norc", "--noprofile", "-c", ASK, "bash", line]).current_dir(dir));
    output.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_with_the_programs_candidates() {
    let dir = tempfile::tempdir().unwrap();
    let table: &[(&str, &[&str])] = &[
        ("llmprof-tui repl", &["[replay ]"]),
        ("llmprof-tui model=qwen3_0", &["[qwen3_0_6b ]"]),
        ("llmprof-tui run model=qwen3_8b,mist", &["[qwen3_8b,mistral_7b ]"]),
        ("llmprof-tui run runtime.s", &["[runtime.seed=]", "[runtime.sim.]", "[runtime.speculative.]"]),
        ("llmprof-tui run ~mod", &["[~model ]", "[~model.]"]),
        ("llmprof-tui run 'output.record=t", &["[output.record=true]"]),
        ("llmprof-tui run output.record=", &["[false ]", "[true ]"]),
        ("A=1 llmprof-tui run --qu", &["[--quiet ]"]),
        ("llmprof-tui run nothing.like.that=", &[]),
    ];
    for (line, wanted) in table {
        assert_eq!(bash(dir.path(), line), *wanted, "{line}");
    }
    let mine = dir.path().join("conf/model");
    std::fs::create_dir_all(&mine).unwrap();
    std::fs::write(mine.join("my_own.yaml"), "name: mine\n").unwrap();
    assert_eq!(bash(dir.path(), "llmprof-tui model=my"), ["[my_own ]"]);
}

/// Types `line` and TAB into an interactive shell and waits for `wanted` on its screen.
fn typed(shell: &str, args: &[&str], setup: &str, line: &str, wanted: &str) {
    let dir = tempfile::tempdir().unwrap();
    let size = PtySize { rows: 24, cols: 120, pixel_width: 0, pixel_height: 0 };
    let pair = native_pty_system().openpty(size).unwrap();
    let mut command = CommandBuilder::new(shell);
    command.args(args);
    command.cwd(dir.path());
    for (name, value) in [
        ("PATH", path().as_str()),
        ("HOME", dir.path().to_str().unwrap()),
        ("TERM", "dumb"),
        ("PS1", "READY> "),
    ] {
        command.env(name, value);
    }
    let mut child = pair.slave.spawn_command(command).unwrap();
    let mut reader = pair.master.try_clone_reader().unwrap();
    let mut writer = pair.master.take_writer().unwrap();
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = reader.read(&mut bytes) {
            if tx.send(bytes[..n].to_vec()).is_err() {
                return;
            }
        }
    });
    let mut screen = vt100::Parser::new(NonZero::new(24).unwrap(), NonZero::new(120).unwrap(), 0);
    let mut until = |what: &str| {
        let began = Instant::now();
        while !screen.screen().contents().contains(what) {
            assert!(
                began.elapsed() < PATIENCE,
                "{shell} never shows {what:?}:\n{}",
                screen.screen().contents()
            );
            if let Ok(bytes) = rx.recv_timeout(Duration::from_millis(100)) {
                screen.process(&bytes);
            }
        }
    };
    until("READY>");
    writer.write_all(format!("{setup}; echo set''up\r").as_bytes()).unwrap();
    until("setup");
    writer.write_all(format!("{line}\t").as_bytes()).unwrap();
    until(wanted);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn bash_replaces_the_word_under_the_cursor() {
    let setup = "eval \"$(llmprof-tui completion bash)\"";
    let args = ["--norc", "--noprofile", "-i"];
    typed(
        "bash",
        &args,
        setup,
        "true; llmprof-tui run model=qwen3_0",
        "true; llmprof-tui run model=qwen3_0_6b ",
    );
}

#[test]
#[ignore = "needs zsh; .ci/run installs it"]
fn zsh_replaces_the_word_under_the_cursor() {
    let setup = "autoload -U compinit; compinit -u -D; source <(llmprof-tui completion zsh)";
    typed("zsh", &["-f", "-i"], setup, "llmprof-tui run model=qwen3_0", "llmprof-tui run model=qwen3_0_6b ");
}

#[test]
#[ignore = "needs fish; .ci/run installs it"]
fn fish_receives_candidates_and_descriptions() {
    let ask = "llmprof-tui completion fish | source; complete -C 'llmprof-tui run model=qwen3_0'";
    let home = tempfile::tempdir().unwrap();
    let mut fish = Command::new("fish");
    let output =
        output_of(fish.args(["--no-config", "-c", ask]).env("HOME", home.path()).current_dir(home.path()));
    assert!(output.starts_with("model=qwen3_0_6b\tQwen3 0.6B"), "{output}");
}

#[test]
fn completion_prints_candidates_only() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("conf");
    std::fs::create_dir(&broken).unwrap();
    std::fs::write(broken.join("config.yaml"), "a: [").unwrap();
    let table: &[&[&str]] = &[
        &["bash", "--", "", ""],
        &["bash", "--"],
        &["zsh", "--", "run", "model="],
        &["fish", "--", "run", "--conf-dir", "/nowhere", "model="],
        &["fish", "--", "run", "+a=${b", "model=["],
        &["zsh"],
    ];
    for expected in table {
        let done = program(dir.path()).arg("__complete").args(*expected).output().unwrap();
        assert_eq!((done.status.code(), done.stderr.as_slice()), (Some(0), &b""[..]), "{expected:?}");
    }
}

#[test]
fn scripts_are_printed_and_help_names_the_startup_file() {
    let dir = tempfile::tempdir().unwrap();
    for (shell, word) in
        [("bash", "complete -o nospace"), ("zsh", "#compdef llmprof-tui"), ("fish", "complete -c")]
    {
        let done = program(dir.path()).args(["completion", shell]).output().unwrap();
        assert!(String::from_utf8_lossy(&done.stdout).contains(word), "{shell}");
    }
    let help = program(dir.path()).args(["completion", "--help"]).output().unwrap();
    assert!(String::from_utf8_lossy(&help.stdout).contains("~/.bashrc"));
    let help = program(dir.path()).arg("--help").output().unwrap();
    assert!(!String::from_utf8_lossy(&help.stdout).contains("__complete"));
}
