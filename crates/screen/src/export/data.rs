//! The data of each pane, with the pane's settings.

use jiff::Timestamp;

use super::table::{Table, cell, number};
use crate::{
    panes::{
        Rate, SNAPSHOT_ROWS, TokenWindow, headline, kernel_rows, log_lines, side_by_side, unjudged_rows,
        verdict_text,
    },
    view::View,
};
use llmprof_analysis::{
    compare::{Comparison, Metric},
    interval::ConfidenceInterval,
    roofline::Roof,
};
use llmprof_event::{Level, kernels::Extent, readings::Reading, reasons};
use llmprof_record::{
    state::{LogLine, Series, Snapshot},
    sweep::csv_rows,
};

/// One row per lane and per collective.
pub fn ranks(view: &View<'_>) -> Table {
    let mut table = Table::titled(
        "what,name,gpu,span_s,compute_s,nccl_s,wait_s,copy_s,idle_s,steps,kernels,collectives,last,bytes,ranks,calls,median_us,algbw_b_s,busbw_b_s",
    );
    let totals = view.state.ranks.total();
    let seconds = |ns: u64| number(ns as f64 / 1e9);
    for lane in &totals.lanes {
        let (of, sums) = (lane.lane(), &lane.sums);
        let gpu = of.gpu.map(|gpu| gpu.to_string()).unwrap_or_default();
        let times = [lane.span_ns, sums.compute_ns, sums.nccl_ns, sums.wait_ns, sums.copy_ns, sums.idle_ns]
            .map(seconds);
        let counts = [sums.steps, sums.kernels, sums.collectives, sums.last].map(|n| n.to_string());
        let row = ["lane".to_owned(), of.to_string(), gpu].into_iter().chain(times).chain(counts);
        table.add(row.chain(std::iter::repeat_n(String::new(), 6)));
    }
    for row in totals.by_time() {
        let bandwidth = row.bandwidth();
        let known = [
            row.bytes.map(|bytes| bytes.to_string()),
            Some(row.ranks.to_string()),
            Some(row.calls.to_string()),
            row.median_ns().map(|ns| number(ns as f64 / 1e3)),
            bandwidth.map(|bandwidth| number(bandwidth.algorithm)),
            bandwidth.map(|bandwidth| number(bandwidth.bus)),
        ];
        let empty = std::iter::repeat_n(String::new(), 11);
        let cells = ["collective".to_owned(), row.kind.to_string()].into_iter().chain(empty);
        table.add(cells.chain(known.into_iter().map(Option::unwrap_or_default)));
    }
    table
}

/// One row per kept request.
pub fn requests(view: &View<'_>) -> Table {
    let mut table = Table::titled("request,start_s,first_token_s,end_s,measured,failed");
    for lane in &view.state.server.lanes {
        let first = lane.first.map(|first| number(first.secs())).unwrap_or_default();
        let row = [lane.request.to_string(), number(lane.start.secs()), first, number(lane.end.secs())];
        table.add(row.into_iter().chain([lane.measured.to_string(), lane.failed.to_string()]));
    }
    table
}

/// One row per value.
pub fn overview(view: &View<'_>) -> Table {
    let state = view.state;
    let mut table = Table::titled("part,name,what,unit,value");
    let mut add = |part: &str, name: &str, what: &str, unit: &str, value: String| {
        if !value.is_empty() {
            table.add([part, name, what, unit].map(str::to_owned).into_iter().chain([value]));
        }
    };
    if let Some(run) = &state.run {
        for (name, value) in [
            ("model", run.model.clone()),
            ("dtype", run.dtype.clone()),
            ("engine", run.kind.to_string()),
            ("device", state.device().map_or_else(String::new, ToString::to_string)),
        ] {
            add("run", name, "", "", value);
        }
        add("run", "simulated", "", "", run.simulated.to_string());
    }
    add("run", "time", "", "s", number(state.now.secs()));
    let (now, rate) = headline(view);
    if rate == Rate::Now {
        let what = if state.kind().has_concurrent_requests() { "output" } else { "decode" };
        add("throughput", what, "now", "tok/s", number(now));
    }
    add("throughput", "decode", "mean", "tok/s", number(state.decode_tok_s()));
    add("throughput", "prefill", "mean", "tok/s", number(state.total.prefill_tok_s()));
    add("throughput", "output", "wall clock", "tok/s", number(state.total.output_tok_s()));
    add("throughput", "GPU idle", "share", "1", number(state.gpu_idle().map(|idle| idle.share)));
    add("throughput", "MFU", "share", "1", number(state.mfu().map(|used| used.share)));
    let mbu = now.and_then(|rate| state.mbu_at(rate));
    add("throughput", "MBU", "share", "1", number(mbu.map(|used| used.share)));
    for (name, distribution) in state.latencies(&state.total) {
        let s = distribution.summary();
        add("latency", name, "n", "", s.n.to_string());
        let values = [("mean", s.mean), ("p50", s.p50), ("p90", s.p90), ("p99", s.p99)];
        let ends = [("min", s.min), ("max", s.max), ("last", distribution.last_ms())];
        values.into_iter().chain(ends).for_each(|(what, ms)| add("latency", name, what, "ms", number(ms)));
    }
    for (name, distribution) in
        state.total.left_out().into_iter().flat_map(|metrics| state.latencies(metrics))
    {
        let s = distribution.summary();
        add("latency, kernels recorded", name, "n", "", s.n.to_string());
        add("latency, kernels recorded", name, "mean", "ms", number(s.mean));
        add("latency, kernels recorded", name, "p50", "ms", number(s.p50));
    }
    let cost = state.kernels.recording.cost();
    add("latency, kernels recorded", "cost", "of a step", "%", number(cost.map(|cost| cost.cost_pct)));
    if let Some(gpu) = view.gpu() {
        add("GPU", "name", "", "", gpu.info.name.clone());
        if let Some(energy) = state.energy(gpu) {
            let requests = energy.requests.map(|requests| requests.j_per_output_token);
            add("energy", "requests", "per output token", "J", number(requests));
            for phase in &energy.phases {
                add("energy", phase.phase.name(), "", "J", number(phase.joules));
                add("energy", phase.phase.name(), "per token", "J", number(phase.j_per_token));
            }
        }
        for reading in Reading::ALL {
            let about = reading.about();
            add("GPU", about.key, "last", about.unit, number(gpu.value(*reading)));
        }
        for cause in state.diagnosis_of(gpu).into_iter().flat_map(|diagnosis| diagnosis.causes) {
            let name = format!("{} in {}", cause.reason, cause.phase);
            add("limit", &name, "held", "s", number(cause.active_s));
            add("limit", &name, "time_share", "1", number(cause.time_share));
            add("limit", &name, "clock", "MHz", number(cause.clock_mhz));
            add("limit", &name, "clock_free", "MHz", number(cause.clock_free_mhz));
            add("limit", &name, "cost", "%", number(cause.cost_pct));
            add("limit", &name, "cost", "ms/token", number(cause.ms_per_token));
            add("limit", &name, "lost", "tokens", number(cause.tokens_lost));
            add("limit", &name, "basis", "", cause.basis.to_string());
        }
    }
    if let Some(trust) = state.trust() {
        add("trust", "score", &format!("of {}", trust.of), "", trust.score.to_string());
        trust.issues.iter().for_each(|issue| add("trust", "doubt", "", "", issue.to_string()));
    }
    add("verdict", "", "", "", verdict_text(view));
    table
}

/// The readings of all GPUs in the table, of the enlarged one, or of the host, over the time range of the charts, at
/// the kept resolution.
pub fn readings(view: &View<'_>) -> Table {
    let mut table = Table::titled("device,reading,unit,t_s,min,mean,max");
    let (from, to) = view.time_range();
    let mut add = |device: &str, reading: &str, unit: &str, series: &Series| {
        for (t, bucket) in series.within(from, to) {
            let about = [device, reading, unit].map(str::to_owned);
            let numbers = [bucket.min, bucket.mean(), bucket.max].map(|value| value.to_string());
            table.add(about.into_iter().chain([number(t.secs())]).chain(numbers));
        }
    };
    let gpus = match view.gpu() {
        Some(_) if view.shows_gpu_table() => view.state.gpus.iter().collect(),
        shown => Vec::from_iter(shown),
    };
    if gpus.is_empty() {
        let host = &view.state.host;
        for (reading, unit, series) in [
            ("cpu_pct", "%", &host.cpu_pct),
            ("process_pct", "% of a core", &host.process_pct),
            ("clock_mhz", "MHz", &host.freq_mhz),
            ("mem_used_bytes", "B", &host.mem_used_bytes),
            ("process_rss_bytes", "B", &host.process_rss_bytes),
            ("package_power_w", "W", &host.package_power_w),
        ] {
            add("host", reading, unit, series);
        }
    }
    for gpu in gpus {
        let device = format!("GPU {} {}", gpu.info.index, gpu.info.name);
        for reading in Reading::ALL {
            let about = reading.about();
            add(&device, about.key, about.unit, gpu.series(*reading));
        }
        for (bit, series) in &gpu.reasons {
            add(&device, &format!("held by {}", reasons::named(*bit).name()), "1 while active", series);
        }
    }
    table
}

/// All kept tokens up to the last one on the screen; or those around the open incident.
pub fn tokens(view: &View<'_>) -> Table {
    let state = view.state;
    let window = TokenWindow::new(view, usize::MAX);
    let gpu = state.profiled_gpu();
    let beside = if gpu.is_some() { "sm_clock_mhz,power_w" } else { "cpu_pct,cpu_clock_mhz" };
    let mut table = Table::titled(&format!(
        "token,t_s,request,id,first,warmup,since_last_ms,{beside},incident,kernels_recorded"
    ));
    for (mark, number_of) in window.tokens.iter().zip(window.first..) {
        let mut row = vec![
            number_of.to_string(),
            number(mark.t.secs()),
            mark.request.to_string(),
            mark.id.to_string(),
            mark.first.to_string(),
            mark.warmup.to_string(),
            number(mark.gap_ns as f64 / 1e6),
        ];
        row.extend(match gpu {
            Some(gpu) => [
                window.value(gpu.series(Reading::SmClock), |sample| sample.sm_clock_mhz, mark.t),
                window.value(gpu.series(Reading::Power), |sample| sample.power_w, mark.t),
            ]
            .map(cell),
            None => [&state.host.cpu_pct, &state.host.freq_mhz]
                .map(|series| cell(window.value(series, |_| None, mark.t))),
        });
        let incident = state.flight.incidents.iter().find(|incident| incident.token == number_of);
        row.push(cell(incident.map(|incident| incident.describe())));
        row.push(mark.recorded.to_string());
        table.add(row);
    }
    table
}

/// The rows as the pane groups, sorts and filters them; each counter is a column.
pub fn kernels(view: &View<'_>) -> Table {
    let mut table = Table::titled(
        "source,name,operator,range,calls,steps,share_pct,total_ns,mean_ns,median_ns,min_ns,max_ns,stddev_ns,grid,\
         block,registers,shared_bytes,graph_calls,bytes,flops,class",
    );
    let Some(known) = kernel_rows(view) else { return table };
    let rows = &known.shown.table.rows;
    let mut counters: Vec<(&str, &str)> =
        rows.iter().flat_map(|row| row.counters.iter().map(|(name, unit, _)| (name, unit))).collect();
    counters.sort_unstable();
    counters.dedup();
    table.titles.extend(counters.iter().map(|(name, unit)| match *unit {
        "" => (*name).to_owned(),
        unit => format!("{name} [{unit}]"),
    }));
    let extent = |extent: Option<Extent>| cell(extent.map(|[x, y, z]| format!("{x}x{y}x{z}")));
    for (row, class) in rows.iter().zip(&known.classes) {
        let times = [row.total_ns, row.mean_ns, row.median_ns, row.min_ns, row.max_ns, row.stddev_ns];
        let mut cells = vec![
            known.source.clone(),
            row.name.clone(),
            cell(row.operator.map(|operator| operator.name())),
            cell(row.range.clone()),
            row.calls.to_string(),
            cell(known.steps),
            number(known.shown.share(row)),
        ];
        cells.extend(times.map(number));
        cells.extend([
            extent(row.grid),
            extent(row.block),
            cell(row.registers),
            cell(row.shared_bytes),
            cell(row.graph_calls),
            number(row.bytes),
            number(row.flops),
            cell(class.map(|class| class.word())),
        ]);
        cells.extend(counters.iter().map(|(name, _)| number(row.counters.mean(name))));
        table.add(cells);
    }
    table
}

/// The owners of each account.
pub fn owners(view: &View<'_>) -> Table {
    let mut table = Table::titled("of,total_ms,n,owner,group,ms,share,basis");
    let accounts = view.state.accounts();
    for account in accounts.all() {
        for entry in &account.entries {
            table.add(vec![
                account.figure.key().to_owned(),
                number(account.total_ns / 1e6),
                account.n.to_string(),
                entry.owner.to_string(),
                entry.owner.group().key().to_owned(),
                number(entry.ns / 1e6),
                number(account.share(entry.ns)),
                entry.basis.to_string(),
            ]);
        }
    }
    table
}

/// The Python lines of a followed program.
pub fn python_lines(view: &View<'_>) -> Table {
    let mut table = Table::titled("thread,state,line,share,share_while_gpu_idle");
    for line in view.state.stacks.lines() {
        let idle = line.idle_share.map(number).unwrap_or_default();
        table.add([
            line.thread.clone(),
            line.state.to_string(),
            line.line.to_owned(),
            number(line.share),
            idle,
        ]);
    }
    table
}

/// The ceilings, then the points.
pub fn points(view: &View<'_>) -> Table {
    let roofline = view.state.roofline();
    let mut table = Table::titled(
        "kind,phase,name,flop_per_byte,flop_per_s,bytes_per_s,flops,bytes,seconds,flops_pct,bytes_pct,time_pct,class,basis",
    );
    let stated = roofline.stated().zip(Some(roofline.peaks.as_ref().ok().and_then(|peaks| peaks.clock_mhz)));
    let ceilings = [("stated", stated), ("now", roofline.now().zip(Some(roofline.clock_mhz)))];
    for (name, (roof, mhz)) in ceilings.into_iter().filter_map(|(name, roof)| Some((name, roof?))) {
        let Roof { flops, bytes_per_s } = roof;
        let mut row = vec!["ceiling".to_owned(), String::new(), name.to_owned()];
        row.extend([roof.ridge(), flops, bytes_per_s].map(number));
        row.resize(table.titles.len() - 1, String::new());
        row.push(cell(mhz.map(|mhz| format!("SM at {mhz} MHz"))));
        table.add(row);
    }
    for point in &roofline.points {
        let timed = &point.timed;
        let mut row = vec![cell(name_of(&point.kind)), point.phase.to_owned(), point.name.clone()];
        row.push(number(timed.flop_per_byte()));
        row.extend(
            [timed.flop_per_s(), timed.bytes_per_s(), timed.flops, timed.bytes, timed.seconds].map(number),
        );
        row.extend(
            [point.share.map(|share| share.flops_pct), point.share.map(|share| share.bytes_pct)].map(number),
        );
        row.push(number(point.time_pct));
        row.push(cell(point.verdict.as_ref().map(|verdict| verdict.class.word())));
        row.push(point.basis.to_string());
        table.add(row);
    }
    table
}

/// The serialised name.
fn name_of(value: &impl serde::Serialize) -> Option<String> {
    serde_json::to_value(value).ok()?.as_str().map(str::to_owned)
}

/// The displayed comparison, otherwise snapshots side by side, otherwise the jobs of a sweep.
pub fn compared(view: &View<'_>) -> Table {
    if let Some(comparison) = view.comparison {
        return judged(view, comparison);
    }
    match (side_by_side(view), view.sweep) {
        (None, Some(shown)) if view.replay.is_none() => {
            let mut rows = csv_rows(shown.sweep).into_iter();
            Table { titles: rows.next().unwrap_or_default(), rows: rows.collect() }
        }
        (None, _) => Table::titled("metric,unit,a,b"),
        (Some((a, b)), _) => snapshots(&a, &b),
    }
}

fn judged(view: &View<'_>, comparison: &Comparison) -> Table {
    let mut table = Table::titled(
        "metric,unit,a,b,ratio,ratio_low,ratio_high,cycles_ratio,cycles_low,cycles_high,code_ratio,code_low,code_high,\
         verdict,cause,reason,a_name,b_name",
    );
    let names = [&comparison.a.name, &comparison.b.name].map(Clone::clone);
    let interval = |interval: Option<ConfidenceInterval>| {
        let part = |of: fn(ConfidenceInterval) -> f64| number(interval.map(of));
        [part(|i| i.estimate), part(|i| i.low), part(|i| i.high)]
    };
    let unjudged = unjudged_rows(view, comparison);
    let judged = comparison.rows.iter().filter(|row| {
        (row.a.is_some() || row.b.is_some()) && unjudged.iter().all(|other| other.name != row.label)
    });
    for row in judged {
        let mut cells =
            vec![row.metric.to_string(), unit(row.metric).to_owned(), number(row.a), number(row.b)];
        cells.extend([row.ratio, row.in_cycles, row.code].into_iter().flat_map(interval));
        cells.extend([
            row.word.to_lowercase(),
            cell(row.cause.as_ref().and_then(name_of)),
            cell(row.reason.clone()),
        ]);
        table.add(cells.into_iter().chain(names.clone()));
    }
    for row in unjudged.iter().filter(|row| row.a.is_some() || row.b.is_some()) {
        let mut cells = vec![row.name.to_owned(), row.unit.to_owned(), number(row.a), number(row.b)];
        cells.resize(table.titles.len() - names.len(), String::new());
        table.add(cells.into_iter().chain(names.clone()));
    }
    table
}

/// The unit of [`Metric::value`].
fn unit(metric: Metric) -> &'static str {
    match metric {
        Metric::Ttft(_) | Metric::Tpot(_) | Metric::Itl(_) => "ms",
        Metric::DecodeTokS | Metric::PrefillTokS => "tok/s",
        Metric::Goodput => "1",
        Metric::JPerToken => "J/token",
        Metric::PeakMemory => "B",
        Metric::KernelsPerToken => "1/token",
    }
}

fn snapshots(a: &Snapshot, b: &Snapshot) -> Table {
    let mut table = Table::titled("metric,unit");
    table.titles.extend([a.name.clone(), b.name.clone()]);
    for (name, unit, value) in SNAPSHOT_ROWS {
        if value(a).is_some() || value(b).is_some() {
            table.add([name.to_owned(), unit.to_owned(), number(value(a)), number(value(b))]);
        }
    }
    let mut add = |name: &str, unit: &str, value: fn(&Snapshot) -> String| {
        table.add([name.to_owned(), unit.to_owned(), value(a), value(b)]);
    };
    add("from", "s", |s| number(s.metrics.from_s));
    add("to", "s", |s| number(s.metrics.to_s));
    add("requests", "n", |s| s.metrics.requests.to_string());
    add("tokens", "n", |s| s.metrics.output_tokens.to_string());
    add("model", "", |s| s.model.clone());
    add("overrides", "", |s| s.overrides.join(" "));
    table
}

/// As filtered and sorted.
pub fn runs(view: &View<'_>) -> Table {
    let mut table = Table::titled(
        "run,recorded,experiment,model,outcome,simulated,requests,ttft_p50_ms,tpot_p50_ms,itl_p50_ms,prefill_tok_s,\
         decode_tok_s,sweep,overrides,dtype,batch,verdict,trust",
    );
    for run in view.runs.listed() {
        let result = run.result.as_ref();
        let metrics = result.map(|result| &result.metrics);
        let mut cells = vec![
            run.dir.path().display().to_string(),
            cell(Timestamp::try_from(run.modified).ok()),
            run.experiment.clone(),
            run.model.clone(),
            cell(result.map(|result| result.outcome)),
            // Unknown until the run has ended.
            cell(result.map(|_| run.simulated())),
            cell(metrics.map(|m| m.requests)),
        ];
        cells.extend(
            [
                metrics.and_then(|m| m.ttft_ms.p50),
                metrics.and_then(|m| m.tpot_ms.p50),
                metrics.and_then(|m| m.itl_ms.p50),
                metrics.and_then(|m| m.prefill_tok_s),
                metrics.and_then(|m| m.decode_tok_s),
            ]
            .map(number),
        );
        cells.extend([
            cell(run.sweep.as_ref().map(|sweep| sweep.display())),
            run.kind.overrides.join(" "),
            run.kind.dtype.clone().unwrap_or_default(),
            cell(run.kind.batch),
            run.verdict().to_string(),
            cell(result.and_then(|result| result.trust.as_ref()).map(|trust| trust.score)),
        ]);
        table.add(cells);
    }
    table
}

/// The lines that match the filter.
pub fn log(view: &View<'_>) -> Table {
    let mut table = Table::titled("t_s,level,source,times,text");
    for LogLine { t, notice, times, .. } in log_lines(view) {
        let level = match notice.level {
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        };
        table.add([
            number(t.secs()),
            level.to_owned(),
            notice.source.clone(),
            times.to_string(),
            notice.text.clone(),
        ]);
    }
    table
}
