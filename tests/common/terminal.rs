//! The program on a pseudo-terminal: the test sends keys and reads the screen.

use std::{
    cell::RefCell,
    fs,
    io::{Read, Write},
    num::NonZeroU16,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossterm::event::KeyCode;
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use tempfile::TempDir;

use super::{PATIENCE, PROGRAM, environment, eventually, signal, signalled};

/// A shell starts the program and records what a user would notice afterwards: the exit code, and the terminal's
/// settings before and after. It outlives the signals that end the program. Its own message "Killed" does not go to the
/// terminal, which may have no reader; redirecting only the command would redirect the shell too until the command
/// ends.
const SHELL: &str = r#"
trap : HUP INT TERM
stty -g >before
exec 3>&2 2>/dev/null
sh -c 'echo $$ >pid.new; mv pid.new pid; exec "$0" "$@" 2>&3 3>&-' "$@"
echo $? >code.new
stty -g >after 2>/dev/null
mv code.new code
"#;

/// The program replaces the shell: it leads the session and receives the hang-up.
const ALONE: &str = r#"echo $$ >pid; exec "$@""#;

pub struct Terminal {
    pub dir: TempDir,
    screen: Arc<Mutex<vt100::Parser>>,
    master: RefCell<Option<Box<dyn MasterPty>>>,
    keyboard: RefCell<Option<Box<dyn Write + Send>>>,
    gone: Arc<AtomicBool>,
    unread: Arc<AtomicBool>,
    reader: RefCell<Option<JoinHandle<()>>>,
    shell: Box<dyn Child + Send + Sync>,
}

fn cells(n: u16) -> NonZeroU16 {
    NonZeroU16::new(n).unwrap()
}

fn size(cols: u16, rows: u16) -> PtySize {
    PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }
}

impl Terminal {
    /// Starts the program with `args` in an empty directory.
    pub fn start(args: &[&str]) -> Terminal {
        Terminal::start_in(tempfile::tempdir().unwrap(), args, &[], (120, 40))
    }

    pub fn start_in(dir: TempDir, args: &[&str], env: &[(&str, &str)], size: (u16, u16)) -> Terminal {
        Terminal::spawn(SHELL, dir, args, env, size)
    }

    /// Without a shell, to test the loss of its terminal.
    pub fn start_alone(args: &[&str]) -> Terminal {
        Terminal::spawn(ALONE, tempfile::tempdir().unwrap(), args, &[], (120, 40))
    }

    fn spawn(
        script: &str,
        dir: TempDir,
        args: &[&str],
        env: &[(&str, &str)],
        (cols, rows): (u16, u16),
    ) -> Terminal {
        let pty = native_pty_system().openpty(size(cols, rows)).unwrap();
        let mut command = CommandBuilder::new("sh");
        command.args(["-c", script, "sh", PROGRAM]);
        command.args(args);
        command.cwd(dir.path());
        // Signals have their default handlers: portable-pty resets them.
        command.umask(Some(0o022));
        command.env_clear();
        for (name, value) in environment(dir.path()) {
            command.env(name, value);
        }
        for (name, value) in [("TERM", "xterm-256color")].iter().chain(env) {
            command.env(name, value);
        }
        let shell = pty.slave.spawn_command(command).unwrap();
        drop(pty.slave);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(cells(rows), cells(cols), 0)));
        let gone = Arc::new(AtomicBool::new(false));
        let unread = Arc::new(AtomicBool::new(false));
        let (mut output, shown) = (pty.master.try_clone_reader().unwrap(), Arc::clone(&screen));
        let (stop, wait) = (Arc::clone(&gone), Arc::clone(&unread));
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 1 << 16];
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..n]);
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                while wait.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        Terminal {
            dir,
            screen,
            keyboard: RefCell::new(Some(pty.master.take_writer().unwrap())),
            master: RefCell::new(Some(pty.master)),
            gone,
            unread,
            reader: RefCell::new(Some(reader)),
            shell,
        }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn text(&self) -> String {
        self.with(|screen| screen.contents())
    }

    pub fn with<T>(&self, look: impl FnOnce(&vt100::Screen) -> T) -> T {
        look(self.screen.lock().unwrap().screen())
    }

    /// Waits until the screen is as `wanted`.
    #[track_caller]
    pub fn until(&self, what: &str, wanted: impl Fn(&vt100::Screen) -> bool) {
        let shown = std::panic::Location::caller();
        let deadline = Instant::now() + PATIENCE;
        while !self.with(&wanted) {
            let code = self.code();
            let late = Instant::now() > deadline;
            // Looks once more after the end: the text may be in the last output.
            if late || (code.is_some() && !self.with(&wanted) && self.settled() && !self.with(&wanted)) {
                panic!("{shown}: no {what:?} on the screen (exit code {code:?}):\n{}", self.text());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// All output has been read.
    #[track_caller]
    fn settled(&self) -> bool {
        if let Some(reader) = self.reader.borrow_mut().take() {
            eventually("the end of the output", || reader.is_finished().then_some(()));
            let _ = reader.join();
        }
        true
    }

    #[track_caller]
    pub fn see(&self, text: &str) {
        self.until(text, |screen| screen.contents().contains(text));
    }

    #[track_caller]
    pub fn see_no(&self, text: &str) {
        self.until(&format!("absence of {text}"), |screen| !screen.contents().contains(text));
    }

    pub fn send(&self, keys: &str) {
        let mut keyboard = self.keyboard.borrow_mut();
        let keyboard = keyboard.as_mut().expect("a keyboard");
        keyboard.write_all(keys.as_bytes()).and_then(|()| keyboard.flush()).unwrap();
    }

    /// Sends keys and waits for the text that they show.
    #[track_caller]
    pub fn press(&self, keys: &str, shows: &str) {
        self.send(keys);
        self.see(shows);
    }

    /// Presses the left button on the last row that contains `text`.
    pub fn click(&self, text: &str) {
        let (column, row) = self.with(|screen| {
            let (_, columns) = screen.size();
            let rows: Vec<String> = screen.rows(0, columns.get()).collect();
            let row = rows.iter().rposition(|row| row.contains(text)).expect("the text to click on");
            (rows[row][..rows[row].find(text).unwrap()].chars().count(), row)
        });
        self.send(&format!("\x1b[<0;{};{}M\x1b[<0;{};{}m", column + 1, row + 1, column + 1, row + 1));
    }

    pub fn resize(&self, cols: u16, rows: u16) {
        // The emulator first, so that it has the new size when the program draws for it.
        self.screen.lock().unwrap().set_size(cells(rows), cells(cols));
        self.master.borrow().as_ref().expect("a terminal").resize(size(cols, rows)).unwrap();
    }

    /// The program is given a size that the emulator does not have.
    pub fn resize_program(&self, cols: u16, rows: u16) {
        self.master.borrow().as_ref().expect("a terminal").resize(size(cols, rows)).unwrap();
    }

    /// Closes the terminal while the program runs.
    pub fn hang_up(&self) {
        self.gone.store(true, Ordering::Relaxed);
        // New output wakes the reader, which then closes its end.
        self.resize(100, 30);
        self.settled();
        self.keyboard.take();
        self.master.take();
    }

    /// Whether the program's output stays unread, as on a hung connection.
    pub fn set_unread(&self, unread: bool) {
        self.unread.store(unread, Ordering::Relaxed);
    }

    pub fn pid(&self) -> u32 {
        let pid = || fs::read_to_string(self.path().join("pid")).ok()?.trim().parse().ok();
        eventually("the program's start", pid)
    }

    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Another program writes to the same terminal.
    pub fn write_as_other(&self, text: &str) {
        let tty = self.master.borrow().as_ref().expect("a terminal").tty_name().expect("its name");
        fs::OpenOptions::new().write(true).open(tty).unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// The exit code, once the program has ended.
    pub fn code(&self) -> Option<i32> {
        fs::read_to_string(self.path().join("code")).ok()?.trim().parse().ok()
    }

    /// Waits for the program's end and returns its exit code.
    #[track_caller]
    pub fn exit_code(&self) -> i32 {
        let deadline = Instant::now() + PATIENCE;
        let code = loop {
            match self.code() {
                Some(code) => break code,
                None => assert!(Instant::now() < deadline, "still running:\n{}", self.text()),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        self.settled();
        code
    }

    /// Waits for the end of a program without a terminal.
    pub fn code_after_hang_up(&mut self) -> u32 {
        let mut ended = || self.shell.try_wait().unwrap();
        let shell = eventually("the end after a hang-up", || ended().map(|status| status.exit_code()));
        self.code().map_or(shell, |code| code as u32)
    }

    /// The terminal has the state from before the program's start.
    #[track_caller]
    pub fn assert_restored(&self) {
        let settings = |name: &str| fs::read_to_string(self.path().join(name)).unwrap();
        assert_eq!(settings("before"), settings("after"), "stty -g");
        self.with(|screen| {
            assert!(!screen.alternate_screen(), "still on the alternate screen");
            assert!(!screen.hide_cursor(), "no cursor");
            assert!(!screen.bracketed_paste(), "bracketed paste is on");
            assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None);
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.code().is_none() && matches!(self.shell.try_wait(), Ok(None)) {
            // The program may have ended meanwhile; a panic here would hide the first one.
            signalled(self.pid(), "KILL");
        }
        self.set_unread(false);
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.shell.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The bytes that a terminal sends for a key.
pub fn sent_for(key: KeyCode) -> String {
    match key {
        KeyCode::Char(c) => c.to_string(),
        KeyCode::Enter => "\r".into(),
        KeyCode::Tab => "\t".into(),
        KeyCode::Esc => "\x1b".into(),
        KeyCode::BackTab => "\x1b[Z".into(),
        KeyCode::Up => "\x1b[A".into(),
        KeyCode::Down => "\x1b[B".into(),
        KeyCode::Right => "\x1b[C".into(),
        KeyCode::Left => "\x1b[D".into(),
        KeyCode::Home => "\x1b[H".into(),
        KeyCode::End => "\x1b[F".into(),
        KeyCode::PageUp => "\x1b[5~".into(),
        KeyCode::PageDown => "\x1b[6~".into(),
        KeyCode::F(1) => "\x1bOP".into(),
        KeyCode::F(2) => "\x1bOQ".into(),
        KeyCode::Delete => "\x1b[3~".into(),
        other => panic!("no bytes are known for {other:?}"),
    }
}
