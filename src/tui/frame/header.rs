//! The header: which run, and how far it is.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span},
    widgets::Widget,
};
use unicode_width::UnicodeWidthStr;

use crate::{
    analysis::trust::Severity,
    base::units::{clock, grouped, millis, percent, rough_seconds, three_digits},
    event::{Phase, RunStarted, Stamp},
    rundir::Loss,
    tui::{
        keys::Mode,
        view::{SweepView, View},
        widgets::{cut, label_value},
    },
};

/// Cells for what a tool is doing.
const TOOL_WIDTH: usize = 24;
/// Of the weights; shortened where it does not fit.
const SYNTHETIC: &str = "synthetic weights";
/// A shorter rest is not worth a number.
const MIN_LEFT_S: f64 = 20.0;

pub fn draw(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let left = identity(view, area.width);
    let room = area.width.saturating_sub(left.width() as u16 + 2) as usize;
    left.render(area, buf);
    let mut right = Line::default();
    for part in status(view) {
        if right.width() + 3 + part.iter().map(Span::width).sum::<usize>() <= room {
            if !right.spans.is_empty() {
                right.push_span("   ");
            }
            right.extend(part);
        }
    }
    right.push_span(" ");
    right.right_aligned().render(area, buf);
}

/// The program, the model and what it runs on.
fn identity<'a>(view: &View<'_>, width: u16) -> Line<'a> {
    let theme = view.theme;
    // Shown at every width: a simulation must not be taken for a measurement.
    let simulated = view.state.run.as_ref().is_some_and(|run| run.simulated);
    let brand = match (simulated, width >= 50) {
        (true, true) => " llmprof simulated ",
        (true, false) => " sim ",
        (false, true) => " llmprof ",
        (false, false) => "",
    };
    let mut line = Line::from(vec![Span::styled(brand, theme.badge), Span::raw(" ")]);
    if let Some(run) = &view.state.run {
        let found = view.state.server.found.as_ref().filter(|_| view.state.serves());
        let served = found.and_then(|found| found.model.as_deref());
        // Some servers name the file of their model.
        let served =
            served.and_then(|model| model.rsplit('/').next()).map(|model| cut(model, 40, theme.glyphs.ascii));
        line.push_span(Span::styled(served.unwrap_or_else(|| run.model.clone()), theme.number));
        let gpu = view.state.profiled_gpu().map(|g| g.info.name.trim_start_matches("NVIDIA ").to_owned());
        let mut facts: Vec<String> =
            Some(run.dtype.clone()).filter(|dtype| !dtype.is_empty()).into_iter().collect();
        if view.state.watches() {
            facts.clear();
        } else if let Some(found) = found {
            facts.extend([found.kind.to_string(), found.url.clone()]);
        } else if view.state.serves() {
            let card =
                view.state.main_gpu().map(|gpu| gpu.info.name.trim_start_matches("NVIDIA ").to_owned());
            facts.extend(card);
            facts.push("waiting for the server".to_owned());
        } else if !run.simulated {
            facts.extend(run.synthetic_weights.then(|| SYNTHETIC.to_owned()));
            facts.extend([gpu.unwrap_or_else(|| run.device.to_string()), run.engine.to_string()]);
            facts.extend((run.batch > 1).then(|| format!("batch {}", run.batch)));
        }
        // The right half of the line shows the status.
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

/// The status of the run, the most important part first.
fn status<'a>(view: &View<'_>) -> Vec<Vec<Span<'a>>> {
    let theme = view.theme;
    let state = view.state;
    let mut parts = Vec::new();
    if state.is_of_files() {
        return parts;
    }
    if let (Mode::Jobs, Some(SweepView { sweep, elsewhere: Some(elsewhere), .. })) = (view.mode(), view.sweep)
    {
        let ended = sweep.jobs.len() - sweep.left();
        let style = if sweep.left() == 0 { theme.good } else { theme.accent };
        let text = format!("{} {ended} of {} ended", theme.glyphs.dot, sweep.jobs.len());
        return vec![
            vec![Span::styled(text, style)],
            vec![Span::styled(clock(elsewhere.elapsed), theme.text)],
        ];
    }
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
    if let Some((tool, doing, share)) = state.kernels.working() {
        let share = share.map(|share| format!(" {}", percent(100.0 * share))).unwrap_or_default();
        let doing = cut(doing, TOOL_WIDTH, theme.glyphs.ascii);
        parts.push(vec![Span::styled(format!("{tool}: {doing}{share}"), theme.accent)]);
    }
    let (text, style) = phase(view);
    parts.push(vec![Span::styled(format!("{} ", theme.glyphs.dot), style), Span::styled(text, style)]);
    match &state.run {
        // Requests of another program are inferred in parts.
        Some(_) if state.follows() => {
            parts.push(label_value(theme, "", &grouped(state.total.all_output_tokens() as i64), "steps"));
        }
        Some(run) => parts.extend(progress(view, run)),
        None => {}
    }
    parts.push(vec![Span::styled(clock(state.now.since(Stamp(0))), theme.text)]);
    if let Some(left) = state.time_left_s().filter(|left| *left >= MIN_LEFT_S) {
        parts.push(vec![Span::styled(format!("{} left", rough_seconds(left)), theme.dim)]);
    }
    if let Some(trust) = state.trust() {
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
        parts.push(label_value(theme, "output", &three_digits(rate), "tok/s"));
    }
    if let Some(ms) = state.total.e2e.percentile_ms(50.0) {
        parts.push(label_value(theme, "E2E p50", &millis(ms), ""));
    }
    parts
}

/// Requests and tokens done.
fn progress<'a>(view: &View<'_>, run: &RunStarted) -> Vec<Vec<Span<'a>>> {
    let (theme, state) = (view.theme, view.state);
    let mut parts = Vec::new();
    let ratio = |label, done: u32, of: u32| label_value(theme, label, &format!("{done}/{of}"), "");
    // A run that waits for steady state may do more requests than planned.
    if state.finished.is_some() {
        parts.push(ratio("requests", state.requests_done, run.requests.max(state.requests_done)));
    } else if state.active.latest().is_some_and(|active| active.started.warmup) {
        parts.push(ratio("warm-up", state.warmup_done + 1, run.warmup));
    } else if state.serves() {
        parts.push(ratio("requests", state.requests_done, run.requests));
    } else if state.active.count() > 0 || state.requests_done > 0 {
        let done = (state.requests_done + state.active.count() as u32).max(1);
        parts.push(ratio("request", done, run.requests.max(done)));
    }
    if state.serves() && state.finished.is_none() {
        parts.push(label_value(theme, "", &state.active.count().to_string(), "in flight"));
    } else if let Some(active) = state.active.latest() {
        let of = format!("{}/{}", active.tokens, active.started.output_tokens);
        parts.push(label_value(theme, "", &of, "tok"));
    } else if state.finished.is_some() {
        parts.push(label_value(theme, "", &grouped(state.total.all_output_tokens() as i64), "tok"));
    }
    parts
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
    if let Some(text) = state.server.silence(state.now).filter(|_| state.watches()) {
        return (text, theme.bad);
    }
    let share = |share: f64| format!("{:.0} %", (100.0 * share).floor());
    let prefill = state.active.latest().filter(|active| active.tokens == 0).and_then(|active| active.prefill);
    let text = match (&state.loading, state.phase, prefill) {
        _ if state.watches() => "monitoring".to_owned(),
        (Some(loading), Phase::Preparing, _) if state.follows() || state.serves() => loading.step.clone(),
        (Some(loading), Phase::Preparing, _) => match loading.share() {
            Some(done) => format!("loading {} {}", loading.step, share(done)),
            None => format!("loading {}", loading.step),
        },
        (_, Phase::Prefill | Phase::Decode, _) if state.serves() => "serving".to_owned(),
        (_, Phase::Prefill, Some(prefill)) => {
            format!("prefill {}", share(f64::from(prefill.layer) / f64::from(prefill.layers.max(1))))
        }
        (_, phase, _) => phase.name().to_owned(),
    };
    (text, theme.phase(state.phase))
}
