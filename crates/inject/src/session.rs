//! The library's thread: waits for a profiler, records for it, and waits again after it has disconnected.

use std::{
    env,
    ffi::c_int,
    io::Read,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    ptr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    RANGES, WORK, c,
    cupti::{Cupti, Subscriber},
    descriptor::{self, Descriptor},
    devices::{self, Contexts},
    door::Door,
    frames::Frames,
    ring::Shared,
    set_recording,
    wire::{self, Command, Mode, Obstacle, Record},
};

/// The interval at which a program without a profiler looks for one.
const LOOK: Duration = Duration::from_secs(1);
/// The longest wait of the program for the profiler.
const ANSWER: Duration = Duration::from_secs(3);
/// The interval at which buffers are collected.
const FLUSH: Duration = Duration::from_millis(50);
/// After this time, work that was launched in a burst has run.
const SETTLE: Duration = Duration::from_millis(100);
const CLOCK: Duration = Duration::from_secs(1);
/// The interval of the check whether the program profiles itself.
const ASK: Duration = Duration::from_millis(100);
/// The time after a program's first work in which it is assumed to create contexts.
const SET_UP: Duration = Duration::from_millis(300);
/// A profiler that has not read for this long counts as stopped.
const STALLED: Duration = Duration::from_secs(2);

static FINISHING: AtomicBool = AtomicBool::new(false);
/// Whether everything has been sent.
pub static FINISHED: AtomicBool = AtomicBool::new(true);

/// The address of the profiler: the socket for programs that it starts, or for this one.
struct ProfilerAddress {
    sockets: [PathBuf; 2],
    token: String,
}

impl ProfilerAddress {
    fn given() -> Option<ProfilerAddress> {
        let directory = env::var_os(wire::DIRECTORY).map(PathBuf::from)?;
        let own = directory.join(format!("{}.socket", std::process::id()));
        Some(ProfilerAddress {
            sockets: [directory.join(wire::SOCKET), own],
            token: env::var(wire::TOKEN).unwrap_or_default(),
        })
    }

    fn connect(&self) -> Option<Session> {
        let connect = |path: &PathBuf| {
            let stream = UnixStream::connect(path).ok()?;
            greet(Descriptor::new(stream, &descriptor::SOCKET)?, &self.token)
        };
        self.sockets.iter().find_map(connect)
    }
}

/// Where a profiler is found.
enum Address {
    /// At the socket that the program's variables name.
    Given(ProfilerAddress),
    /// At the door of this process.
    Door(Door),
}

impl Address {
    fn known() -> Option<Address> {
        let door = DOOR.lock().unwrap_or_else(PoisonError::into_inner).take();
        door.map(Address::Door).or_else(|| ProfilerAddress::given().map(Address::Given))
    }

    fn connect(&mut self) -> Option<Session> {
        match self {
            Address::Given(address) => address.connect(),
            Address::Door(door) => greet(door.wait()?, ""),
        }
    }

    /// Whether it is tried again at once after a profiler has left.
    fn waits(&self) -> bool {
        matches!(self, Address::Door(_))
    }
}

static DOOR: Mutex<Option<Door>> = Mutex::new(None);

/// Opens the door for profilers: the library was loaded into a running process. Returns whether it is open.
pub fn open_door() -> bool {
    let door = Door::new();
    let is_open = door.is_some();
    *DOOR.lock().unwrap_or_else(PoisonError::into_inner) = door;
    is_open
}

/// Begins to record, in the thread that initialises CUDA: CUPTI may crash a program that creates its first context in
/// one thread while CUPTI is switched on in another. Ends the wait for a profiler that has not answered by then.
pub fn begin() -> Option<Session> {
    let since = Instant::now();
    let mut session = ProfilerAddress::given()?.connect()?;
    // The contexts that the program makes from now on are made while CUPTI is on.
    session.has_contexts = true;
    while session.command.is_none() && since.elapsed() < ANSWER && session.read_command() {}
    session.follow();
    Some(session)
}

/// Runs until the process ends.
pub fn run(mut begun: Option<Session>) {
    let Some(mut address) = Address::known() else { return };
    loop {
        let session = begun.take().or_else(|| address.connect());
        let has_connected = session.is_some();
        if let Some(mut session) = session {
            session.run();
        }
        // The thread does not end, because CUPTI's destructors of the thread would run in parallel with those of the
        // process.
        while FINISHING.load(Ordering::Relaxed) {
            thread::park();
        }
        if !(has_connected && address.waits()) {
            thread::sleep(LOOK);
        }
    }
}

/// Sends the remaining records when the program ends, which takes milliseconds unless the machine is very busy. CUPTI
/// is not called after that.
pub extern "C" fn finish() {
    FINISHING.store(true, Ordering::Relaxed);
    let since = Instant::now();
    while !(FINISHED.load(Ordering::Relaxed) && Cupti::close()) && since.elapsed() < ANSWER {
        thread::sleep(Duration::from_millis(2));
    }
    Cupti::close();
}

/// Identifies the library to the profiler and receives its memory.
fn greet(stream: Descriptor<UnixStream>, token: &str) -> Option<Session> {
    if !is_own(&stream) {
        return None;
    }
    let timeout = Some(ANSWER);
    stream.set_read_timeout(timeout).ok()?;
    stream.set_write_timeout(timeout).ok()?;
    let hello = wire::hello(token);
    // SAFETY: the bytes of the text. Unlike `write` it raises no signal if the profiler has disconnected.
    let sent = unsafe { c::send(stream.as_raw_fd(), hello.as_ptr().cast(), hello.len(), c::MSG_NOSIGNAL) };
    if sent != hello.len() as isize {
        return None;
    }
    let memory = receive_descriptor(&stream)?;
    stream.set_nonblocking(true).ok()?;
    let shared = Shared::map(memory.as_raw_fd())?;
    Some(Session::new(stream, shared))
}

/// Whether the profiler belongs to the same user or to root.
fn is_own(stream: &UnixStream) -> bool {
    let (mut peer, mut bytes) = (c::Ucred::default(), size_of::<c::Ucred>() as u32);
    // SAFETY: it writes at most `bytes` bytes. `getuid` has no argument.
    let (status, me) = unsafe {
        let value = ptr::from_mut(&mut peer).cast();
        (c::getsockopt(stream.as_raw_fd(), c::SOL_SOCKET, c::SO_PEERCRED, value, &mut bytes), c::getuid())
    };
    status == 0 && (peer.uid == me || peer.uid == 0)
}

fn receive_descriptor(stream: &UnixStream) -> Option<OwnedFd> {
    let mut byte = 0u8;
    let mut rights = c::Rights::default();
    let mut iov = c::Iovec { base: ptr::from_mut(&mut byte).cast(), bytes: 1 };
    let mut message = c::Msghdr {
        name: ptr::null_mut(),
        name_bytes: 0,
        iov: &mut iov,
        iov_count: 1,
        control: ptr::from_mut(&mut rights).cast(),
        control_bytes: size_of::<c::Rights>(),
        flags: 0,
    };
    // SAFETY: all pointers are to locals of the given sizes.
    let received = unsafe { c::recvmsg(stream.as_raw_fd(), &mut message, c::MSG_CMSG_CLOEXEC) };
    let has_one = rights.level == c::SOL_SOCKET && rights.kind == c::SCM_RIGHTS && rights.bytes == 20;
    if received != 1 || !has_one || rights.fd < 0 {
        return None;
    }
    // SAFETY: the kernel has just created this descriptor for this process.
    Some(unsafe { OwnedFd::from_raw_fd(rights.fd) })
}

pub struct Session {
    stream: Descriptor<UnixStream>,
    shared: Shared,
    /// The last command.
    command: Option<Command>,
    cupti: Option<Cupti>,
    /// Whether the program has made its contexts, as far as is known.
    has_contexts: bool,
    /// The contexts, and since when they are the same.
    contexts: (Contexts, Instant),
    mode: Mode,
    /// Whether waits of the host are recorded too.
    waits: bool,
    /// The frames of launches, if they are wanted, and the subscription to launches during a burst.
    frames: Option<&'static Frames>,
    launches: Option<Subscriber>,
    obstacle: Option<Obstacle>,
    line: Vec<u8>,
    /// The beginning of the current or the last burst.
    burst_at: Instant,
    flush_at: Instant,
    /// The time at which the rest of a burst is collected.
    settle_at: Option<Instant>,
    clock_at: Option<Instant>,
    /// Whether the program's GPUs were sent.
    named: bool,
    asked_at: Instant,
    taken: bool,
    since: Instant,
    /// The time of the first work.
    work_at: Option<Instant>,
    heartbeat: (u64, Instant),
    noise: u32,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.switch(Mode::Nothing);
        if let Some(cupti) = self.cupti {
            cupti.flush(true);
            self.report_dropped(cupti);
        }
        set_recording(false);
        WORK.close();
        RANGES.close();
        FINISHED.store(true, Ordering::Relaxed);
    }
}

impl Session {
    fn new(stream: Descriptor<UnixStream>, shared: Shared) -> Session {
        FINISHED.store(false, Ordering::Relaxed);
        // SAFETY: this session closes both before it drops the memory.
        unsafe {
            WORK.open(shared.work());
            RANGES.open(shared.ranges());
        }
        let now = Instant::now();
        Session {
            stream,
            shared,
            command: None,
            cupti: None,
            has_contexts: false,
            contexts: (Contexts::Active(0), now),
            mode: Mode::Nothing,
            waits: false,
            frames: None,
            launches: None,
            obstacle: None,
            line: Vec::new(),
            burst_at: now,
            flush_at: now,
            settle_at: None,
            clock_at: None,
            named: false,
            asked_at: now,
            taken: false,
            since: now,
            work_at: None,
            heartbeat: (0, now),
            noise: std::process::id() | 1,
        }
    }

    fn run(&mut self) {
        while !FINISHING.load(Ordering::Relaxed) && self.read_command() {
            self.follow();
        }
    }

    /// Waits for a command or the next time to act. Returns false if the profiler has disconnected.
    fn read_command(&mut self) -> bool {
        let mut waiting = c::PollFd { fd: self.stream.as_raw_fd(), events: c::POLLIN, revents: 0 };
        let timeout_ms = if self.mode == Mode::Burst { 5 } else { 20 };
        // SAFETY: one entry.
        let ready: c_int = unsafe { c::poll(&mut waiting, 1, timeout_ms) };
        if ready <= 0 {
            return true;
        }
        let mut bytes = [0; 256];
        match (&*self.stream).read(&mut bytes) {
            Ok(0) => return false,
            Ok(n) => {
                for byte in &bytes[..n] {
                    match byte {
                        b'\n' => {
                            let line = std::mem::take(&mut self.line);
                            self.obey(&String::from_utf8_lossy(&line));
                        }
                        _ if self.line.len() < 256 => self.line.push(*byte),
                        _ => return false,
                    }
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        true
    }

    fn obey(&mut self, line: &str) {
        let Some(command) = Command::read(line) else { return };
        if let Command::Frames(layout) = command {
            self.frames = Frames::for_layout(layout);
            return;
        }
        self.command = Some(command);
        // A new command begins with a burst.
        self.burst_at = Instant::now();
        if let Command::Record { period_ms, .. } = command {
            self.burst_at -= Duration::from_millis(u64::from(period_ms)).min(Duration::from_secs(60));
        }
    }

    /// Whether the program is still creating its contexts. During that time CUPTI is left unchanged once it is switched
    /// on.
    fn is_setting_up(&mut self) -> bool {
        if self.mode == Mode::Nothing {
            return false;
        }
        if self.work_at.is_none() && (Cupti::has_work() || self.since.elapsed() >= wire::SET_UP_AT_MOST) {
            self.work_at = Some(Instant::now());
            // The program's GPUs can be sent now.
            self.clock_at = None;
        }
        self.work_at.is_none_or(|at| at.elapsed() < SET_UP)
    }

    fn follow(&mut self) {
        if self.is_setting_up() {
            return;
        }
        let Some(command) = self.command.filter(|command| *command != Command::Rest) else {
            set_recording(false);
            return self.switch(Mode::Nothing);
        };
        if !self.has_made_contexts() {
            return;
        }
        let Some(cupti) = self.cupti.or_else(|| Cupti::load(finish)) else {
            return self.report(Obstacle::NoCupti);
        };
        self.cupti = Some(cupti);
        if self.is_stalled() {
            set_recording(false);
            return self.switch(Mode::Nothing);
        }
        if self.asked_at.elapsed() >= ASK || self.mode == Mode::Nothing {
            self.asked_at = Instant::now();
            // CUPTI accepts one subscriber, which would be this library.
            self.record_launches(cupti, false);
            self.taken = cupti.is_taken();
        }
        if self.taken {
            self.leave(cupti);
            return self.report(Obstacle::InUse);
        }
        set_recording(true);
        let wanted = self.wanted(command);
        // Sent before the first record, whose times are meaningless without it.
        if self.clock_at.is_none_or(|at| at.elapsed() >= CLOCK) {
            self.clock_at = Some(Instant::now());
            self.tell_clock(cupti);
        }
        self.switch(wanted);
        self.record_waits(cupti, command == Command::Everything && self.mode == Mode::Burst);
        self.record_launches(cupti, self.mode == Mode::Burst);
        if self.is_setting_up() {
            return;
        }
        if self.settle_at.is_some_and(|at| Instant::now() >= at) && self.mode == Mode::Light {
            self.settle_at = None;
            cupti.flush(true);
        }
        if self.flush_at.elapsed() >= FLUSH {
            self.flush_at = Instant::now();
            cupti.flush(false);
            self.report_dropped(cupti);
        }
    }

    /// CUPTI may crash a program that creates a context while it is switched on: a program that is joined later must have
    /// had the same contexts for a while.
    fn has_made_contexts(&mut self) -> bool {
        if self.has_contexts {
            return true;
        }
        let now = devices::contexts();
        if now != self.contexts.0 {
            self.contexts = (now, Instant::now());
        }
        let same_for = self.contexts.1.elapsed();
        self.has_contexts = match now {
            Contexts::NoDriver | Contexts::NotInitialised => false,
            // A program may make contexts that are not its GPUs' primary ones, which cannot be seen.
            Contexts::Active(0) => same_for >= wire::SET_UP_AT_MOST,
            Contexts::Active(_) => same_for >= SET_UP,
        };
        if !self.has_contexts && !matches!(now, Contexts::Active(1..)) {
            self.report(Obstacle::NoContext);
        }
        self.has_contexts
    }

    fn wanted(&mut self, command: Command) -> Mode {
        let (burst, period) = match command {
            Command::Rest | Command::Frames(_) => return Mode::Nothing,
            Command::Everything => return Mode::Burst,
            Command::Record { burst_ms, period_ms } => {
                (Duration::from_millis(burst_ms.into()), Duration::from_millis(period_ms.into()))
            }
        };
        if burst.is_zero() {
            return Mode::Light;
        }
        // The first burst lasts until the program has work.
        if burst >= period || self.work_at.is_none() {
            return Mode::Burst;
        }
        let since = self.burst_at.elapsed();
        if self.mode == Mode::Burst && since < burst {
            return Mode::Burst;
        }
        // The period varies by up to a tenth, in case the program has the same rhythm.
        let tenth = period / 10;
        let shift = tenth.mul_f64(f64::from(self.noise % 1000) / 500.0);
        if self.mode != Mode::Burst && since + tenth >= period + shift {
            self.burst_at = Instant::now();
            self.noise = self.noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            return Mode::Burst;
        }
        Mode::Light
    }

    fn switch(&mut self, to: Mode) {
        let Some(cupti) = self.cupti.filter(|_| to != self.mode) else { return };
        if to == Mode::Nothing {
            self.record_waits(cupti, false);
        }
        if to != Mode::Burst {
            self.record_launches(cupti, false);
        }
        let from = self.mode;
        let at_ns = cupti.now_ns();
        match cupti.switch(from, to) {
            Ok(()) => {
                self.mode = to;
                self.obstacle = None;
            }
            Err(obstacle) => {
                let _ = cupti.switch(to, Mode::Nothing);
                self.mode = Mode::Nothing;
                self.report(obstacle);
            }
        }
        // A burst begins when it is switched on, and ends when switching it off begins.
        let at_ns = if self.mode == Mode::Burst { cupti.now_ns() } else { at_ns };
        // Kernels of graphs that ran at the end of the burst have records that are never completed, and hold back their
        // buffer.
        self.settle_at = (from == Mode::Burst && self.mode == Mode::Light).then(|| Instant::now() + SETTLE);
        let mode = self.mode;
        WORK.with(|writer| writer.write(Record::Mode { at_ns, mode }));
    }

    fn record_waits(&mut self, cupti: Cupti, wanted: bool) {
        if wanted != self.waits {
            self.waits = wanted;
            cupti.record_waits(wanted);
        }
    }

    /// A launch is recorded in bursts alone.
    fn record_launches(&mut self, cupti: Cupti, wanted: bool) {
        match (self.frames, self.launches.take()) {
            (Some(frames), None) if wanted => self.launches = cupti.call_at_launches(frames),
            (Some(_), Some(subscriber)) if wanted => self.launches = Some(subscriber),
            (_, Some(subscriber)) => cupti.end_calls(subscriber),
            (_, None) => {}
        }
    }

    /// Another tool uses CUPTI. Each kind has one switch for all tools: kinds that the other profiler needs stay on,
    /// and it switches them off itself.
    fn leave(&mut self, cupti: Cupti) {
        if self.mode == Mode::Nothing {
            return;
        }
        self.record_waits(cupti, false);
        self.record_launches(cupti, false);
        self.mode = Mode::Nothing;
        let at_ns = cupti.now_ns();
        WORK.with(|writer| writer.write(Record::Mode { at_ns, mode: Mode::Nothing }));
    }

    fn report(&mut self, obstacle: Obstacle) {
        if self.obstacle != Some(obstacle) {
            self.obstacle = Some(obstacle);
            WORK.with(|writer| writer.write(Record::Obstacle(obstacle)));
        }
    }

    fn report_dropped(&mut self, cupti: Cupti) {
        let records = cupti.take_dropped();
        if records > 0 {
            WORK.with(|writer| writer.write(Record::Dropped { records }));
        }
    }

    fn tell_clock(&mut self, cupti: Cupti) {
        let (cupti_ns, monotonic_ns) = wire::closest(|| cupti.now_ns(), || c::clock_ns(1));
        let clock = Record::Clock {
            cupti_ns,
            monotonic_ns,
            realtime_ns: c::clock_ns(0),
            cupti_version: cupti.version,
        };
        WORK.with(|writer| writer.write(clock));
        if self.named || self.work_at.is_none() {
            return;
        }
        if let Some(uuids) = devices::uuids() {
            self.named = true;
            for (number, uuid) in (0..).zip(uuids) {
                WORK.with(|writer| writer.write(Record::Device { number, uuid }));
            }
        }
    }

    fn is_stalled(&mut self) -> bool {
        let beat = self.shared.header().heartbeat.load(Ordering::Relaxed);
        if beat != self.heartbeat.0 {
            self.heartbeat = (beat, Instant::now());
        }
        self.heartbeat.1.elapsed() > STALLED
    }
}
