//! What requests cost: the section of `report.md`, `requests.csv`, and JSON.

use serde_json::{Value, json};

use crate::state::RunState;
use llmprof_analysis::{
    bill::{BillSummary, Billed, Charge, Method},
    distribution::Distribution,
};
use llmprof_base::{
    cells,
    table::{Cell, Table},
    units::{Unit, grouped, millis, percent, three_digits},
};

/// Upper edges of the groups of lengths, in tokens.
const LENGTHS: [u32; 6] = [128, 512, 2048, 8192, 32768, u32::MAX];

/// `bill` of `metrics.json`; null without complete requests on a sampled GPU.
pub(super) fn bill_json(state: &RunState) -> Value {
    let Some(summary) = state.bill.summary() else { return Value::Null };
    let price = |charge: Charge| state.gpu_hour().map(|per_hour| charge.price(per_hour));
    let charge =
        |charge: Charge| json!({"gpu_ms": charge.gpu_ms, "joules": charge.joules, "price": price(charge)});
    json!({
        "method": summary.method,
        "requests": summary.requests(),
        "total": charge(summary.total),
        "prompt": charge(summary.prompt),
        "output": charge(summary.output),
        "idle": charge(summary.idle),
        "per_request": charge(summary.per_request()),
        "per_million_prompt_tokens": summary.per_million_prompt().map(charge),
        "per_million_output_tokens": summary.per_million_output().map(charge),
    })
}

/// One line for a terminal and for the Server pane.
pub fn bill_text(state: &RunState) -> Option<String> {
    let summary = state.bill.summary()?;
    let mean = summary.per_request();
    let price = |charge: Charge| state.gpu_hour().map(|per_hour| charge.price(per_hour));
    let money =
        |charge: Charge| price(charge).map_or_else(String::new, |price| format!(", {}", three_digits(price)));
    let mut text = format!(
        "A request takes {} of GPU time and {} J{} (mean of {})",
        millis(mean.gpu_ms),
        three_digits(mean.joules),
        money(mean),
        grouped(summary.requests() as i64)
    );
    if let Some(output) = summary.per_million_output().filter(|_| state.gpu_hour().is_some()) {
        let prompt = summary.per_million_prompt().and_then(price).map(three_digits);
        let prompt =
            prompt.map_or_else(String::new, |prompt| format!("{prompt} per million prompt tokens, "));
        text += &format!(
            "; {prompt}{} per million output tokens",
            price(output).map_or_else(String::new, three_digits)
        );
    }
    text += &format!(". The GPU was idle {} of the time.", idle_share(&summary));
    Some(text)
}

fn idle_share(summary: &BillSummary) -> String {
    percent(100.0 * summary.idle.gpu_ms / summary.total.gpu_ms.max(f64::MIN_POSITIVE))
}

/// The section of `report.md`.
pub(super) fn bill_md(state: &RunState) -> String {
    let Some(summary) = state.bill.summary() else { return String::new() };
    let per_hour = state.gpu_hour();
    let row = |name: &str, charge: Charge| {
        let share = Unit::Share.cell(charge.gpu_ms / summary.total.gpu_ms.max(f64::MIN_POSITIVE));
        let price = per_hour.map_or_else(|| Cell::from(""), |per_hour| charge.price(per_hour).into());
        cells![name, charge.gpu_ms / 1e3, share, charge.joules, price]
    };
    let mut table = Table::labelled("", ["GPU seconds", "share", "joules", "price"]);
    table.push(row("prompts", summary.prompt));
    table.push(row("output", summary.output));
    table.push(row("idle", summary.idle));
    table.push(row("total", summary.total));
    let mut out = format!("## What requests cost\n\n{}\n", table.markdown());
    out += match summary.method {
        Method::Shape => {
            "Time and energy are shared at each moment among the requests in progress: prompt tokens by their FLOPs, \
             output tokens by the bytes that they read. Estimated from the model's shape.\n\n"
        }
        Method::Time => {
            "Time and energy are shared at each moment among the requests in progress by the time between their \
             tokens, because the model's shape is not known.\n\n"
        }
    };
    if let Some(text) = bill_text(state) {
        out += &format!("{text}\n\n");
    }
    out + &by_length(state)
}

/// The cost of requests by the length of their prompts and of their output.
fn by_length(state: &RunState) -> String {
    let mut table = Table::labelled("tokens", ["requests", "GPU ms, mean", "p50", "p90", "J, mean"]);
    for (name, tokens) in [
        ("prompt", (|billed: &Billed| billed.prompt_tokens) as fn(&Billed) -> u32),
        ("output", |billed: &Billed| billed.output_tokens),
    ] {
        let mut from = 0;
        for to in LENGTHS {
            let (mut times, mut joules) = (Distribution::default(), 0.0);
            for billed in state.bill.requests().filter(|billed| (from..to).contains(&tokens(billed))) {
                times.record((billed.total().gpu_ms * 1e6) as u64);
                joules += billed.total().joules;
            }
            if times.n() > 0 {
                let range =
                    if to == u32::MAX { format!("{from} or more") } else { format!("{from}–{}", to - 1) };
                let ms = |ms: Option<f64>| Unit::Millis.cell(ms);
                table.push(cells![
                    format!("{name} {range}"),
                    Unit::Count.cell(times.n()),
                    ms(times.mean_ms()),
                    ms(times.percentile_ms(50.0)),
                    ms(times.percentile_ms(90.0)),
                    joules / times.n() as f64,
                ]);
            }
            from = to;
        }
    }
    format!("{}\n", table.markdown())
}

/// `requests.csv`: what each kept request cost.
pub(super) fn requests_csv(state: &RunState) -> Option<String> {
    state.bill.summary()?;
    let mut out =
        "request,prompt_tokens,output_tokens,gpu_ms,prompt_gpu_ms,output_gpu_ms,joules,prompt_joules,output_joules,price\n".to_owned();
    for billed in state.bill.requests() {
        let Billed { request, prompt_tokens, output_tokens, prompt, output } = billed;
        let total = billed.total();
        let price =
            state.gpu_hour().map_or_else(String::new, |per_hour| format!("{:.9}", total.price(per_hour)));
        out += &format!(
            "{request},{prompt_tokens},{output_tokens},{:.6},{:.6},{:.6},{:.6},{:.6},{:.6},{price}\n",
            total.gpu_ms, prompt.gpu_ms, output.gpu_ms, total.joules, prompt.joules, output.joules
        );
    }
    Some(out)
}
