//! The key table: each key, its action, and its text in help, footer and documents.

use std::sync::LazyLock;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::ui::{Action, Effect, JobsCommand, Pane, ReplayCommand, RunCommand, RunsCommand};
use llmprof_config::ThemeName;
use llmprof_event::{Stamp, Tool};

/// The scope in which a key is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Anywhere,
    /// Anywhere, to select a pane.
    Panes,
    /// During a live run or a sweep.
    Live,
    /// During a single live run.
    Single,
    Sweep,
    /// While jobs of a sweep run in other processes.
    Jobs,
    /// In the table of a sweep's jobs.
    JobTable,
    /// During a remote run.
    Remote,
    Replay,
    /// On the panes with charts over time.
    Charts,
    On(Pane),
}

impl Scope {
    pub fn title(self) -> &'static str {
        match self {
            Scope::Anywhere => "everywhere",
            Scope::Panes => "panes",
            Scope::Live => "while profiling",
            Scope::Single => "while profiling one run",
            Scope::Sweep => "in a sweep",
            Scope::Jobs => "in a sweep on Slurm or on several GPUs",
            Scope::JobTable => "in the table of a sweep",
            Scope::Remote => "on a remote host",
            Scope::Replay => "while replaying",
            Scope::Charts => "Overview and GPU",
            Scope::On(pane) => pane.title(),
        }
    }

    pub fn applies(self, pane: Pane, mode: Mode) -> bool {
        match self {
            Scope::Anywhere | Scope::Panes => true,
            Scope::Live => matches!(mode, Mode::Single | Mode::Sweep | Mode::Remote),
            Scope::Single => matches!(mode, Mode::Single | Mode::Remote),
            Scope::Remote => mode == Mode::Remote,
            Scope::Sweep => mode == Mode::Sweep,
            Scope::Jobs => mode == Mode::Jobs,
            Scope::JobTable => pane == Pane::Compare && matches!(mode, Mode::Sweep | Mode::Jobs),
            Scope::Replay => mode == Mode::Replay,
            Scope::Charts => matches!(pane, Pane::Overview | Pane::Gpu),
            Scope::On(p) => p == pane,
        }
    }

    /// If two scopes share a key, the lower one takes it.
    pub fn priority(self) -> u8 {
        match self {
            Scope::On(_) | Scope::Charts => 0,
            Scope::Anywhere | Scope::Panes => 2,
            _ => 1,
        }
    }
}

/// The content of the screen, as far as keys are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Single,
    Sweep,
    /// A sweep whose jobs run in other processes.
    Jobs,
    /// A single remote run.
    Remote,
    Replay,
    /// Kernel reports without a run.
    Files,
}

#[derive(Clone)]
pub struct Binding {
    /// Empty for an action that only the command palette has.
    pub keys: &'static [KeyCode],
    pub scope: Scope,
    pub action: Action,
    /// One or two words for the footer; empty if the footer does not show the key.
    pub short: &'static str,
    pub help: &'static str,
}

impl Binding {
    /// Whether no other binding takes its key on this pane now.
    pub fn is_active(&self, pane: Pane, mode: Mode) -> bool {
        match self.keys.first() {
            Some(key) => binding(*key, pane, mode).is_some_and(|active| std::ptr::eq(active, self)),
            None => self.scope.applies(pane, mode),
        }
    }

    /// All its keys, as help and documents write them.
    pub fn label(&self, ascii: bool) -> String {
        if self.keys.is_empty() {
            return ":".to_owned();
        }
        self.keys.iter().map(|key| key_name(*key, ascii)).collect::<Vec<_>>().join(" ")
    }
}

/// The text of a key.
pub fn key_name(key: KeyCode, ascii: bool) -> String {
    match key {
        Char(' ') => "space".to_owned(),
        PageUp => "PgUp".to_owned(),
        PageDown => "PgDn".to_owned(),
        BackTab => "Shift-Tab".to_owned(),
        Left if !ascii => "←".to_owned(),
        Right if !ascii => "→".to_owned(),
        Up if !ascii => "↑".to_owned(),
        Down if !ascii => "↓".to_owned(),
        Left | Right | Up | Down => key.to_string().to_lowercase(),
        key => key.to_string(),
    }
}

const fn key(
    keys: &'static [KeyCode],
    scope: Scope,
    action: Action,
    short: &'static str,
    help: &'static str,
) -> Binding {
    Binding { keys, action, scope, short, help }
}

const fn run(command: RunCommand) -> Action {
    A::Do(Effect::Run(command))
}

const fn replay(command: ReplayCommand) -> Action {
    A::Do(Effect::Replay(command))
}

const fn jobs(command: JobsCommand) -> Action {
    A::Do(Effect::Jobs(command))
}

const fn runs(command: RunsCommand) -> Action {
    A::Do(Effect::Runs(command))
}

use Action as A;
use KeyCode::{
    BackTab, Char, Delete, Down, End, Enter, Esc, F, Home, Left, PageDown, PageUp, Right, Tab, Up,
};
use Scope::{Anywhere, Charts, JobTable, Jobs, Live, On, Panes, Remote, Replay, Single, Sweep};

const KERNELS: Scope = On(Pane::Kernels);
const TOKENS: Scope = On(Pane::Tokens);
const RUNS: Scope = On(Pane::Runs);
/// Beyond the end of any list.
const FAR: isize = 1 << 20;

/// In the order of the help: the panes, then everything else.
pub static BINDINGS: LazyLock<Vec<Binding>> = LazyLock::new(|| {
    let show = |pane: Pane| key(pane.spec().keys, Panes, A::Show(pane), "", pane.spec().help);
    Pane::ALL.map(show).into_iter().chain(ACTIONS.iter().cloned()).collect()
});

#[rustfmt::skip] // One row a line.
static ACTIONS: &[Binding] = &[
    key(&[Tab], Panes, A::StepPane(1), "", "next pane"),
    key(&[BackTab], Panes, A::StepPane(-1), "", "previous pane"),
    key(&[Char('q')], Anywhere, A::Do(Effect::Quit), "quit", "quit; if something runs, q again ends it (Ctrl-C: at once)"),
    key(&[Char('?'), F(1)], Anywhere, A::Help, "help", "show this help"),
    key(&[Char(':')], Anywhere, A::Palette, "", "run an action by name, e.g. pane kernels (also Ctrl-P)"),
    key(&[Up, Char('k')], Anywhere, A::Move(-1), "", "up"),
    key(&[Down, Char('j')], Anywhere, A::Move(1), "", "down"),
    key(&[PageUp], Anywhere, A::Move(-20), "", "one page up"),
    key(&[PageDown], Anywhere, A::Move(20), "", "one page down"),
    key(&[Char('+'), Char('=')], Anywhere, A::Zoom(1), "", "zoom in: the charts show a shorter time span"),
    key(&[Char('-')], Anywhere, A::Zoom(-1), "", "zoom out: the charts show a longer time span"),
    key(&[Char('d')], Anywhere, A::ShowSnapshots, "diff", "compare the last two snapshots"),
    key(&[Char('v')], Anywhere, A::Evidence, "evidence", "show the numbers behind the verdict and what to do"),
    key(&[Char('x')], Anywhere, A::Do(Effect::Export), "export", "export the screen as SVG, text and CSV"),
    key(&[Char('t')], Anywhere, A::NextTheme, "", "theme: switch to the next one"),
    key(&[], Anywhere, A::SetTheme(ThemeName::Dark), "", "theme dark"),
    key(&[], Anywhere, A::SetTheme(ThemeName::Light), "", "theme light"),
    key(&[], Anywhere, A::SetTheme(ThemeName::HighContrast), "", "theme high-contrast"),
    key(&[], Anywhere, A::SetTheme(ThemeName::NoColour), "", "theme no-colour"),
    key(&[Char('s')], Live, A::AskSnapshotName, "snapshot", "save the metrics since the last snapshot under a name"),
    key(&[Char('p')], Live, run(RunCommand::TogglePause), "pause", "pause or resume the workload"),
    key(&[Char('K')], Live, run(RunCommand::ToggleKernels), "", "start or stop recording kernels; the run continues"),
    key(&[Char(' ')], Live, run(RunCommand::ToggleView), "freeze", "freeze or unfreeze the view; the run continues"),
    key(&[Char('r')], Single, run(RunCommand::AskRerun), "re-run", "end this run and start it again; asks first"),
    key(&[Char('e')], Single, run(RunCommand::EditOverrides), "edit", "edit the overrides and start a new run"),
    key(&[Char('n')], Single, run(RunCommand::RunUnder(Tool::Nsys)), "nsys", "re-run under nsys; press again to cancel"),
    key(&[Char('c')], Single, run(RunCommand::RunUnder(Tool::Ncu)), "ncu", "collect kernel counters with ncu; press again to cancel"),
    key(&[Char('e')], Sweep, run(RunCommand::EndJob), "end job", "end this job or the cool-down, continue with the next job"),
    key(&[Enter], JobTable, jobs(JobsCommand::Open), "open", "show the recording of the selected job; q returns"),
    key(&[Char('C')], Jobs, jobs(JobsCommand::AskCancel), "cancel", "cancel the jobs that have not ended; asks first"),
    key(&[Char('H')], Remote, run(RunCommand::Reconnect), "reconnect", "reconnect to the remote host now"),
    key(&[Char(' ')], Replay, replay(ReplayCommand::TogglePlay), "play", "play or pause"),
    key(&[Char(','), Left], Replay, replay(ReplayCommand::SeekBy(-5.0)), "", "seek 5 s back"),
    key(&[Char('.'), Right], Replay, replay(ReplayCommand::SeekBy(5.0)), "", "seek 5 s forward"),
    key(&[Char('<')], Replay, replay(ReplayCommand::Slower), "slower", "play slower"),
    key(&[Char('>')], Replay, replay(ReplayCommand::Faster), "faster", "play faster"),
    key(&[Home, Char('g')], Replay, replay(ReplayCommand::SeekTo(Stamp(0))), "", "jump to the start"),
    key(&[End, Char('G')], Replay, replay(ReplayCommand::SeekEnd), "", "jump to the end and follow"),
    key(&[Char('b'), Esc], Replay, replay(ReplayCommand::Leave), "", "return to the live run or the sweep"),
    key(&[Left, Char('h')], KERNELS, A::StepKernelSource(-1), "", "previous source: live phases, nsys and ncu reports"),
    key(&[Right, Char('l')], KERNELS, A::StepKernelSource(1), "", "next source"),
    key(&[Enter], KERNELS, A::ToggleKernelDetails, "details", "show or hide the details of the selected kernel"),
    key(&[Esc], KERNELS, A::CloseKernelDetails, "", "close the details"),
    key(&[Char('m')], KERNELS, A::GroupKernels, "group", "group by operator, family, name, or not at all"),
    key(&[Char('o')], KERNELS, A::Sort, "sort", "sort by time, calls or mean"),
    key(&[Char('/')], KERNELS, A::AskFilter, "filter", "show only kernels that contain a text"),
    key(&[PageUp], KERNELS, A::PageKernels(-1), "", "one page up, in the table or the details"),
    key(&[PageDown], KERNELS, A::PageKernels(1), "", "one page down, in the table or the details"),
    key(&[Char('+'), Char('=')], KERNELS, A::Zoom(1), "", "zoom in on the timeline of the step"),
    key(&[Char('-')], KERNELS, A::Zoom(-1), "", "zoom out of the timeline of the step"),
    key(&[Char('[')], KERNELS, A::StepTimelinePart(-1), "", "previous part of the timeline"),
    key(&[Char(']')], KERNELS, A::StepTimelinePart(1), "", "next part of the timeline"),
    key(&[Left, Char('h')], Charts, A::MoveCursor(-1), "", "move the cursor back: it reads every chart"),
    key(&[Right, Char('l')], Charts, A::MoveCursor(1), "", "move the cursor forward, and past the end to now"),
    key(&[Esc], Charts, A::CloseCursor, "", "close the cursor; return to the table of GPUs"),
    key(&[Enter], On(Pane::Gpu), A::OpenGpu, "", "of several GPUs, show the selected one in large"),
    key(&[Char('g')], On(Pane::Gpu), A::NextGpu, "", "select the next GPU"),
    key(&[Left, Char('h')], TOKENS, A::Scrub(1), "", "select the previous token"),
    key(&[Right, Char('l')], TOKENS, A::Scrub(-1), "", "select the next token"),
    key(&[PageUp], TOKENS, A::Scrub(50), "", "50 tokens back"),
    key(&[PageDown], TOKENS, A::Scrub(-50), "", "50 tokens forward"),
    key(&[End, Char('G')], TOKENS, A::FollowTokens, "", "follow the newest token"),
    key(&[Char(']')], TOKENS, A::ZoomStreams(1), "", "several streams: zoom in, a shorter time span"),
    key(&[Char('[')], TOKENS, A::ZoomStreams(-1), "", "several streams: zoom out, a longer time span"),
    key(&[Enter], TOKENS, A::ToggleIncident, "incident", "open or close the selected incident"),
    key(&[Enter], On(Pane::Why), A::RowEvidence, "evidence", "show the pane with the evidence of the selected owner"),
    key(&[Char('m')], On(Pane::Compare), A::NextComparePart, "parts", "show only ITL histograms, operators or notes, \
                                                              or all"),
    key(&[Enter], RUNS, runs(RunsCommand::Open), "open", "open the selected run; fold or unfold a group"),
    key(&[Right, Char('l')], RUNS, runs(RunsCommand::Unfold), "", "unfold the selected group"),
    key(&[Left, Char('h')], RUNS, runs(RunsCommand::Fold), "", "fold the selected group; from a run, go to its group"),
    key(&[Home, Char('g')], RUNS, A::Move(-FAR), "", "first row"),
    key(&[End, Char('G')], RUNS, A::Move(FAR), "", "last row"),
    key(&[Char('m')], RUNS, runs(RunsCommand::Mark), "mark", "mark the selected run as A, to compare another with it"),
    key(&[Char('d')], RUNS, runs(RunsCommand::Compare), "diff", "compare the selected run with the marked one"),
    key(&[Char('o')], RUNS, A::Sort, "sort", "sort by date, tok/s, TTFT, TPOT or model"),
    key(&[Char('/')], RUNS, A::AskFilter, "filter", "show only runs that contain a text"),
    key(&[Char('W')], RUNS, runs(RunsCommand::Report), "report", "open the report of the selected run in a browser"),
    key(&[Char('N'), F(2)], RUNS, runs(RunsCommand::AskName), "rename", "rename the selected run or sweep"),
    key(&[Char('D'), Delete], RUNS, runs(RunsCommand::AskDelete), "delete", "delete the selected run or sweep; asks first"),
    key(&[Char('R')], RUNS, runs(RunsCommand::Refresh), "", "refresh the list"),
    key(&[Char(']')], On(Pane::Server), A::ZoomStreams(1), "", "requests: zoom in, a shorter time span"),
    key(&[Char('[')], On(Pane::Server), A::ZoomStreams(-1), "", "requests: zoom out, a longer time span"),
    key(&[Char('/')], On(Pane::Log), A::AskFilter, "filter", "show only lines that contain a text"),
];

/// The binding of a key on this pane.
pub fn binding(key: KeyCode, pane: Pane, mode: Mode) -> Option<&'static Binding> {
    let active = BINDINGS.iter().filter(|b| b.scope.applies(pane, mode) && b.keys.contains(&key));
    active.min_by_key(|b| b.scope.priority())
}

/// The action of a key on this pane.
pub fn action(event: KeyEvent, pane: Pane, mode: Mode) -> Option<Action> {
    if event.modifiers.contains(KeyModifiers::CONTROL) {
        return match event.code {
            Char('c') => Some(A::Do(Effect::Interrupt)),
            Char('z') => Some(A::Do(Effect::Suspend)),
            Char('p') => Some(A::Palette),
            _ => None,
        };
    }
    binding(event.code, pane, mode).map(|b| b.action.clone())
}

/// The table as Markdown, for the documentation.
pub fn markdown() -> String {
    let mut out = String::from("| key | where | what |\n|---|---|---|\n");
    for b in BINDINGS.iter() {
        out += &format!("| `{}` | {} | {} |\n", b.label(false), b.scope.title(), b.help);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_ambiguous() {
        let modes = [Mode::Single, Mode::Sweep, Mode::Jobs, Mode::Remote, Mode::Replay, Mode::Files];
        for (pane, mode) in Pane::ALL.into_iter().flat_map(|pane| modes.map(|mode| (pane, mode))) {
            let active: Vec<&Binding> = BINDINGS.iter().filter(|b| b.scope.applies(pane, mode)).collect();
            for (i, a) in active.iter().enumerate() {
                for b in &active[i + 1..] {
                    let shared = a.keys.iter().any(|k| b.keys.contains(k));
                    let same = shared && a.scope.priority() == b.scope.priority();
                    assert!(!same, "{} and {} share a key", a.help, b.help);
                }
            }
        }
    }

    #[test]
    fn panes_have_digits_in_order_and_two_have_letters() {
        let letters = [('w', Pane::Why), ('i', Pane::Lines)];
        for (letter, shown) in letters {
            let press = KeyEvent::new(Char(letter), KeyModifiers::NONE);
            for pane in Pane::ALL {
                assert_eq!(action(press, pane, Mode::Single), Some(A::Show(shown)));
            }
        }
        let others = Pane::ALL.into_iter().filter(|pane| letters.iter().all(|(_, of)| of != pane));
        for (i, pane) in others.enumerate() {
            let digit = char::from_digit((i as u32 + 1) % 10, 10).unwrap();
            let press = KeyEvent::new(Char(digit), KeyModifiers::NONE);
            assert_eq!(action(press, Pane::Overview, Mode::Single), Some(A::Show(pane)));
        }
    }

    #[test]
    fn a_key_depends_on_mode_and_pane() {
        let press = |key, pane, mode| action(KeyEvent::new(key, KeyModifiers::NONE), pane, mode);
        let freeze = Some(run(RunCommand::ToggleView));
        assert_eq!(press(Char(' '), Pane::Gpu, Mode::Single), freeze);
        assert_eq!(press(Char(' '), Pane::Gpu, Mode::Sweep), freeze);
        assert_eq!(press(Char(' '), Pane::Gpu, Mode::Replay), Some(replay(ReplayCommand::TogglePlay)));
        // A sweep is not restarted by a key.
        assert_eq!(press(Char('e'), Pane::Overview, Mode::Sweep), Some(run(RunCommand::EndJob)));
        assert_eq!(press(Char('r'), Pane::Overview, Mode::Sweep), None);
        // A pane's own keys come first.
        assert_eq!(press(Left, Pane::Tokens, Mode::Replay), Some(A::Scrub(1)));
        assert_eq!(press(Left, Pane::Gpu, Mode::Replay), Some(A::MoveCursor(-1)));
        assert_eq!(press(Left, Pane::Log, Mode::Replay), Some(replay(ReplayCommand::SeekBy(-5.0))));
        assert_eq!(press(PageUp, Pane::Kernels, Mode::Single), Some(A::PageKernels(-1)));
    }

    #[test]
    fn help_fits_its_box() {
        for b in BINDINGS.iter() {
            assert!(b.help.len() <= 62 && b.label(true).len() <= 10, "{}: {}", b.label(true), b.help);
        }
    }
}
