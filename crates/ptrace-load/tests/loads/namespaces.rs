//! Processes that see other files and other PIDs. They need root.

use std::fs;
use std::process::Command;

use crate::programs::{Program, compile, load};

/// Whether new namespaces can be made here; the reason is printed if not.
fn can_unshare() -> bool {
    let output = Command::new("unshare").args(["-m", "-p", "-f", "true"]).output();
    let possible = output.as_ref().is_ok_and(|output| output.status.success());
    if !possible {
        println!("skipped: `unshare -m -p -f` is not possible here: {output:?}");
    }
    possible
}

#[test]
fn another_root_that_is_read_only() {
    if !can_unshare() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    fs::copy(compile("states", &[]), root.path().join("program")).unwrap();
    for directory in ["usr", "lib", "lib64", "proc", "etc"] {
        fs::create_dir(root.path().join(directory)).unwrap();
    }
    let script = r#"set -e
mount --bind "$0" "$0"
cd "$0"
for d in usr lib lib64; do mount --rbind "/$d" "$d"; done
mount -t proc proc proc
mount -o remount,bind,ro "$0"
exec chroot "$0" /program"#;
    let program = Program::spawn(Command::new("unshare").args(["-m", "sh", "-c", script]).arg(root.path()));
    assert!(fs::write(format!("/proc/{}/root/file", program.pid()), "").is_err());
    assert!(!fs::exists(format!("/proc/{}/root/tmp", program.pid())).unwrap());
    for expected in 1..3 {
        assert_eq!(load(program.pid(), "count", "").unwrap().result, expected);
    }
    assert!(program.end().success());
}

#[test]
fn another_pid_namespace() {
    if !can_unshare() {
        return;
    }
    let states = compile("states", &[]);
    for options in [&["-p", "-f"][..], &["-p", "-f", "--mount-proc"]] {
        let program = Program::spawn(Command::new("unshare").args(options).arg(&states));
        assert_eq!(program.first, "1");
        let loaded = load(program.only_child(), "surroundings", "").unwrap();
        assert_eq!((loaded.result, loaded.thread < 10), (15, true), "{loaded:?}");
        assert_eq!(load(program.only_child(), "length", "ab").unwrap().result, 2);
        assert!(program.end().success());
    }
}

#[test]
fn files_in_memory_that_cannot_be_executed() {
    if !can_unshare() || !fs::exists("/proc/sys/vm/memfd_noexec").unwrap() {
        println!("skipped: this needs root and vm.memfd_noexec (Linux 6.3)");
        return;
    }
    for level in ["1", "2"] {
        let script = format!("echo {level} > /proc/sys/vm/memfd_noexec && exec \"$0\"");
        let program = Program::spawn(
            Command::new("unshare")
                .args(["-p", "-f", "--mount-proc", "sh", "-c", &script])
                .arg(compile("states", &[])),
        );
        assert_eq!(load(program.only_child(), "length", "abc").unwrap().result, 3);
        assert!(program.end().success());
    }
}
