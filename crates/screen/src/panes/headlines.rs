//! The verdict on the GPU and the rate of tokens, which several panes begin with.

use ratatui::text::Span as Text;

use crate::view::View;
use llmprof_analysis::{heat::Forecast, throttle::Tone};

/// What limits the GPU; coloured if there is a problem.
pub fn gpu_verdict<'a>(view: &View<'_>) -> Vec<Text<'a>> {
    let theme = view.theme;
    let diagnosed = view.workload_gpu().and_then(|gpu| Some((gpu, view.state.diagnosis_now(gpu)?)));
    let Some((gpu, diagnosis)) = diagnosed else { return Vec::new() };
    let style = match diagnosis.tone {
        Tone::Fine => theme.good,
        Tone::Note | Tone::Unknown => theme.text,
        Tone::Bad => theme.warn,
    };
    let mut sentences = vec![Text::styled(theme.glyphs.plain(&format!("{} ", diagnosis.verdict)), style)];
    let slowdown = gpu
        .heat()
        .and_then(|heat| heat.forecast)
        .filter(Forecast::slows_down)
        .map(|forecast| forecast.to_string());
    sentences.extend(slowdown.map(|text| Text::styled(theme.glyphs.plain(&format!("{text} ")), theme.warn)));
    sentences
}

/// The first number of the pane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    Now,
    Mean,
}

impl Rate {
    pub fn unit(self, view: &View<'_>) -> String {
        match self {
            Rate::Now => format!("{} now", rate_unit(view)),
            Rate::Mean => rate_unit(view).to_owned(),
        }
    }
}

/// The unit of a rate: the number of tokens per step of another program is not known.
pub fn rate_unit(view: &View<'_>) -> &'static str {
    if view.state.kind().infers_steps() { "steps/s" } else { "tok/s" }
}

/// The current decode rate, for a server of all streams; of the whole run once it has finished.
pub fn headline(view: &View<'_>) -> (Option<f64>, Rate) {
    let state = view.state;
    match (&state.finished, state.kind().has_concurrent_requests()) {
        (Some(_), true) => (state.total.output_tok_s(), Rate::Mean),
        (None, true) => (state.recent_output_tok_s(2.0), Rate::Now),
        (Some(_), false) => (state.decode_tok_s(), Rate::Mean),
        (None, false) => (state.recent_decode_tok_s(2.0), Rate::Now),
    }
}
