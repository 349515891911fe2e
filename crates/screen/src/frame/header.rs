//! The header: the run and its progress.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span},
    widgets::Widget,
};
use unicode_width::UnicodeWidthStr;

use crate::{
    keys::Mode,
    view::{SweepView, View},
    widgets::{cut, label_value},
};
use llmprof_analysis::trust::Severity;
use llmprof_base::units::{clock, grouped, millis, percent, rough_seconds, three_digits};
use llmprof_event::{Phase, RunStarted, Stamp, WorkKind};
use llmprof_record::rundir::Loss;

/// Cells for the activity of a tool.
const TOOL_WIDTH: usize = 24;
/// The note on random weights; shortened if it does not fit.
const SYNTHETIC: &str = "synthetic weights";
/// A shorter remaining time is not shown.
const MIN_LEFT_S: f64 = 20.0;

/// The gap between two parts of the status.
const GAP: &str = "   ";

/// The trust of the run is left out if the pane shows it.
pub fn draw(view: &View<'_>, area: Rect, trust_is_shown: bool, buf: &mut Buffer) {
    let left = identity(view, area.width);
    let mut room = area.width.saturating_sub(left.width() as u16 + 2) as usize;
    left.render(area, buf);
    let Status { mut alerts, mut phase, mut progress, mut facts } = status(view, trust_is_shown);
    for parts in [&mut alerts, &mut phase, &mut progress, &mut facts] {
        parts.retain(|part| {
            let width = GAP.len() + part.iter().map(Span::width).sum::<usize>();
            let fits = width <= room;
            room -= if fits { width } else { 0 };
            fits
        });
    }
    if let Some(span) = phase.first_mut().and_then(|part| part.last_mut()) {
        // The beginning of the phase keeps its position if there is room for the longest phase.
        let missing = PHASE_WIDTH.saturating_sub(span.width()).min(room);
        span.content.to_mut().push_str(&" ".repeat(missing));
    }
    // The permanent parts, which have fixed columns, are at the end, so that no other part moves them.
    let parts = phase.into_iter().chain(facts.into_iter().rev()).chain(alerts).chain(progress);
    let mut right = Line::default();
    for part in parts {
        if !right.spans.is_empty() {
            right.push_span(GAP);
        }
        right.extend(part);
    }
    right.push_span(" ");
    right.right_aligned().render(area, buf);
}

/// The program, the model and its device.
fn identity<'a>(view: &View<'_>, width: u16) -> Line<'a> {
    let theme = view.theme;
    // Shown at every width: a simulation must not look like a measurement.
    let simulated = view.state.run.as_ref().is_some_and(|run| run.simulated);
    let brand = match (simulated, width >= 50) {
        (true, true) => " llmprof simulated ",
        (true, false) => " sim ",
        (false, true) => " llmprof ",
        (false, false) => "",
    };
    let mut line = Line::from(vec![Span::styled(brand, theme.badge), Span::raw(" ")]);
    if let Some(run) = &view.state.run {
        let found = view.state.load_tested().and_then(|server| server.found.as_ref());
        let served = found.and_then(|found| found.model.as_deref());
        // Some servers report the file of their model.
        let served =
            served.and_then(|model| model.rsplit('/').next()).map(|model| cut(model, 40, theme.glyphs.ascii));
        line.push_span(Span::styled(served.unwrap_or_else(|| run.model.clone()), theme.number));
        let mut facts: Vec<String> =
            Some(run.dtype.clone()).filter(|dtype| !dtype.is_empty()).into_iter().collect();
        let short = |name: &str| name.trim_start_matches("NVIDIA ").to_owned();
        match (&run.kind, found) {
            (WorkKind::Watch, _) => facts.clear(),
            (WorkKind::Server, Some(found)) => facts.extend([found.kind.to_string(), found.url.clone()]),
            (WorkKind::Server, None) => {
                facts.extend(view.state.main_gpu().map(|gpu| short(&gpu.info.name)));
                facts.push("waiting for the server".to_owned());
            }
            (WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Program, _)
                if run.simulated => {}
            (WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Program, _) => {
                facts.extend(run.synthetic_weights.then(|| SYNTHETIC.to_owned()));
                facts.extend(view.state.device_name().map(|name| short(&name)));
                facts.push(run.kind.to_string());
                facts.extend((run.batch > 1).then(|| format!("batch {}", run.batch)));
            }
        }
        // The right half of the line is reserved for the status.
        let room = width.saturating_sub(52).max(22) as usize;
        for mut fact in facts {
            if fact == SYNTHETIC && line.width() + fact.len() + 3 > room {
                fact = "synthetic".to_owned();
            }
            if line.width() + fact.len() + 3 <= room {
                line.push_span(Span::styled(format!(" {} ", theme.glyphs.separator), theme.border));
                line.push_span(Span::styled(fact, theme.dim));
            }
        }
    }
    if let (Mode::Jobs, Some(SweepView { sweep, .. })) = (view.mode(), view.sweep) {
        line.push_span(Span::styled(format!("sweep of {} jobs", sweep.jobs.len()), theme.number));
    }
    if view.state.is_of_files() {
        let files: Vec<&str> = view.state.kernels.reports.iter().map(|report| report.file.as_str()).collect();
        let room = (width as usize).saturating_sub(brand.width() + 2);
        let files = cut(&theme.glyphs.plain(&files.join(", ")), room, theme.glyphs.ascii);
        line.push_span(Span::styled(files, theme.number));
    }
    line
}

/// Parts of the status; in each list the most important one is first.
#[derive(Default)]
struct Status<'a> {
    /// Problems and unusual facts.
    alerts: Vec<Vec<Span<'a>>>,
    /// The phase or the outcome; one part.
    phase: Vec<Vec<Span<'a>>>,
    /// Progress and time, in columns of a fixed width.
    progress: Vec<Vec<Span<'a>>>,
    /// Facts of the current run.
    facts: Vec<Vec<Span<'a>>>,
}

fn status<'a>(view: &View<'_>, trust_is_shown: bool) -> Status<'a> {
    let state = view.state;
    if state.is_of_files() {
        return Status::default();
    }
    if let (Mode::Jobs, Some(sweep)) = (view.mode(), view.sweep) {
        return Status { progress: jobs_elsewhere(view, sweep), ..Status::default() };
    }
    let (text, style) = phase(view);
    let phase = vec![Span::styled(format!("{} ", view.theme.glyphs.dot), style), Span::styled(text, style)];
    let facts = facts(view, trust_is_shown);
    Status { alerts: alerts(view), phase: vec![phase], progress: progress_and_time(view), facts }
}

/// The number of ended jobs in other processes.
fn jobs_elsewhere<'a>(view: &View<'_>, shown: SweepView<'_>) -> Vec<Vec<Span<'a>>> {
    let (theme, sweep) = (view.theme, shown.sweep);
    let ended = sweep.jobs.len() - sweep.unfinished();
    let style = if sweep.unfinished() == 0 { theme.good } else { theme.accent };
    let text = format!("{} {ended} of {} ended", theme.glyphs.dot, sweep.jobs.len());
    let elapsed = shown.elsewhere.map(|elsewhere| vec![Span::styled(clock(elsewhere.elapsed), theme.text)]);
    std::iter::once(vec![Span::styled(text, style)]).chain(elapsed).collect()
}

fn alerts<'a>(view: &View<'_>) -> Vec<Vec<Span<'a>>> {
    let theme = view.theme;
    let mut parts = Vec::new();
    if let Some(loss) = view.loss {
        let text = match loss {
            Loss::NotRecorded { .. } | Loss::Displaced { .. } => "not recorded",
            Loss::Lines { .. } | Loss::Events { .. } | Loss::File { .. } | Loss::There { .. } => {
                "recording incomplete"
            }
        };
        parts.push(vec![Span::styled(text, theme.bad)]);
    }
    if let Some(pending) = view.pending {
        parts.push(vec![Span::styled(pending, theme.warn)]);
    }
    if view.frozen {
        parts.push(vec![Span::styled("view frozen", theme.warn)]);
    }
    if let Some((tool, doing, share)) = view.state.kernels.working() {
        let share = share.map(|share| format!(" {}", percent(100.0 * share))).unwrap_or_default();
        let doing = cut(doing, TOOL_WIDTH, theme.glyphs.ascii);
        parts.push(vec![Span::styled(format!("{tool}: {doing}{share}"), theme.accent)]);
    }
    parts
}

/// The width of `prefill 33 %`, in cells.
const PHASE_WIDTH: usize = 12;

fn progress_and_time<'a>(view: &View<'_>) -> Vec<Vec<Span<'a>>> {
    let (theme, state) = (view.theme, view.state);
    let mut parts = Vec::new();
    match &state.run {
        // Requests of another program are inferred in parts.
        Some(run) if run.kind.infers_steps() => {
            let steps = grouped(state.total.all_output_tokens() as i64);
            parts.push(label_value(theme, "", &format!("{steps:>7}"), "steps"));
        }
        Some(run) => parts.extend(progress(view, run)),
        None => {}
    }
    parts.push(vec![Span::styled(format!("{:>5}", clock(state.now.since(Stamp(0)))), theme.text)]);
    parts
}

fn facts<'a>(view: &View<'_>, trust_is_shown: bool) -> Vec<Vec<Span<'a>>> {
    let (theme, state) = (view.theme, view.state);
    let mut parts = Vec::new();
    if let Some(left) = state.time_left_s().filter(|left| *left >= MIN_LEFT_S) {
        parts.push(vec![Span::styled(format!("{:>6} left", rough_seconds(left)), theme.dim)]);
    }
    if let Some(trust) = state.trust().filter(|_| !trust_is_shown) {
        let dots = |n: u32, dot: &str| dot.repeat(n as usize);
        let (style, missing) = match trust.severity {
            None => (theme.good, theme.dim),
            Some(Severity::LowersTrust) => (theme.warn, theme.dim),
            Some(Severity::BlocksComparison) => (theme.bad, theme.bad),
        };
        parts.push(vec![
            Span::styled("trust ", theme.dim),
            Span::styled(dots(trust.score, theme.glyphs.dot), style),
            Span::styled(dots(trust.of - trust.score, theme.glyphs.hollow_dot), missing),
        ]);
    }
    if let Some(rate) = state.total.output_tok_s() {
        parts.push(label_value(theme, "output", &format!("{:>6}", three_digits(rate)), "tok/s"));
    }
    if let Some(ms) = state.total.e2e.percentile_ms(50.0) {
        parts.push(label_value(theme, "E2E p50", &format!("{:>7}", millis(ms)), ""));
    }
    parts
}

/// Requests and tokens done, with a constant width.
fn progress<'a>(view: &View<'_>, run: &RunStarted) -> Vec<Vec<Span<'a>>> {
    let (theme, state) = (view.theme, view.state);
    let digits = |n: u32| n.to_string().len();
    // A run that waits for steady state may have more requests than planned.
    let done = (state.requests_done + state.active.count() as u32).max(1);
    let requests = run.requests.max(if state.finished.is_some() { state.requests_done } else { done });
    let wide = digits(requests.max(run.warmup));
    let ratio = |label: &str, done: u32, of: u32| {
        label_value(theme, label, &format!("{:>1$}", format!("{done}/{of}"), 2 * wide + 1), "")
    };
    let mut parts = Vec::new();
    let serves_now = run.kind.has_concurrent_requests() && state.finished.is_none();
    if serves_now {
        parts.push(ratio("requests", state.requests_done, run.requests));
    } else if state.finished.is_some() {
        parts.push(ratio("requests", state.requests_done, requests));
    } else if state.active.latest().is_some_and(|active| active.started.warmup) {
        parts.push(ratio("warm-up", state.warmup_done + 1, run.warmup));
    } else if state.active.count() > 0 || state.requests_done > 0 {
        parts.push(ratio("request", done, requests));
    } else if run.requests > 0 {
        parts.push(blank("request ".len() + 2 * wide + 1));
    }
    let longest = 2 * digits(run.output_tokens) + 1;
    if serves_now {
        parts.push(label_value(theme, "", &format!("{:>3}", state.active.count()), "in flight"));
    } else if let Some(active) = state.active.latest() {
        let of = format!("{}/{}", active.tokens, active.started.output_tokens);
        parts.push(label_value(theme, "", &format!("{of:>longest$}"), "tok"));
    } else if state.finished.is_some() {
        let all = grouped(state.total.all_output_tokens() as i64);
        parts.push(label_value(theme, "", &format!("{all:>longest$}"), "tok"));
    } else if run.requests > 0 {
        // Before the first request, or between two.
        parts.push(blank(longest + " tok".len()));
    }
    parts
}

/// Reserves the position of a part.
fn blank<'a>(width: usize) -> Vec<Span<'a>> {
    vec![Span::raw(" ".repeat(width))]
}

/// The phase or the outcome, with its colour.
fn phase(view: &View<'_>) -> (String, Style) {
    let (theme, state) = (view.theme, view.state);
    if let Some(finished) = &state.finished {
        return (finished.outcome.to_string(), theme.outcome(finished.outcome));
    }
    if state.workload_paused_at.is_some() {
        return ("paused".to_owned(), theme.warn);
    }
    // Under load only its metrics may be late: while it answers requests, it is not silent.
    let shows_silence = match state.kind() {
        WorkKind::Watch => true,
        WorkKind::Server => state.active.count() == 0 && state.requests_done > 0,
        WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Program => false,
    };
    if let Some(text) = state.silence().filter(|_| shows_silence) {
        return (text, theme.bad);
    }
    let share = |share: f64| format!("{:.0} %", (100.0 * share).floor());
    let prefill = state.active.latest().filter(|active| active.tokens == 0).and_then(|active| active.prefill);
    let text = match (state.kind(), &state.loading, state.phase, prefill) {
        (WorkKind::Watch, ..) => "monitoring".to_owned(),
        (WorkKind::Program | WorkKind::Server, Some(loading), Phase::Preparing, _) => loading.step.clone(),
        (_, Some(loading), Phase::Preparing, _) => match loading.share() {
            Some(done) => format!("loading {} {}", loading.step, share(done)),
            None => format!("loading {}", loading.step),
        },
        (WorkKind::Server, _, Phase::Prefill | Phase::Decode, _) => "serving".to_owned(),
        (_, _, Phase::Prefill, Some(prefill)) => {
            format!("prefill {}", share(f64::from(prefill.layer) / f64::from(prefill.layers.max(1))))
        }
        (_, _, phase, _) => phase.name().to_owned(),
    };
    (text, theme.phase(state.phase))
}
