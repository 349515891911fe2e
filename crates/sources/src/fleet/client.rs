//! PromQL: the queries to Prometheus, and the conversion of its answers into a snapshot or a history.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::{
    answer::{self, Answer, AnswerError, Series},
    collect::{Collector, some},
    error::{FleetError, server_message},
    labels::{Matcher, NodeLabel},
    metrics::{HEARTBEATS, ONE_HEARTBEAT_EACH, counters, names},
};
use crate::server::{Endpoint, Fetched, Login, Tls, fetch};
use llmprof_analysis::fleet::{
    Fleet, Gpu, GpuVerdict, History, Key, Matrix, Measure, Since, Snapshot, since,
};
use llmprof_base::foreign;
use llmprof_event::readings::Reading;

/// Maximum size of a response in bytes; one with 1,000 GPUs has 15 MB.
const MAX_ANSWER_BYTES: usize = 256 << 20;
/// Steps of a range.
const STEPS: f64 = 120.0;
/// A shorter step gives no more values.
const LEAST_STEP_S: f64 = 5.0;
/// The interval of the queries for silent GPUs, and for since when others are slow.
const SELDOM: Duration = Duration::from_secs(60);

/// The address of Prometheus, and the selection of series.
#[derive(Debug, Clone)]
pub struct Source {
    pub endpoint: Endpoint,
    pub login: Option<Login>,
    /// Certificates to trust in addition to the usual authorities (PEM).
    pub authorities: Vec<u8>,
    pub node_label: NodeLabel,
    pub work_label: Option<String>,
    pub matchers: Vec<Matcher>,
    pub window: Duration,
    pub timeout: Duration,
}

impl Source {
    /// Prometheus at `url`, which may contain a user and a password.
    pub fn at(url: &str) -> Result<Source, FleetError> {
        let (mut endpoint, login) =
            Endpoint::with_login(url).map_err(|e| FleetError::Usage(format!("--prometheus: {e}")))?;
        // Users copy addresses from the browser or from a client.
        for end in ["/api", "/graph", "/query"] {
            if let Some(base) = endpoint.base.strip_suffix(end) {
                endpoint.base = base.to_owned();
            }
        }
        Ok(Source {
            endpoint,
            login,
            authorities: Vec::new(),
            node_label: NodeLabel::Usual,
            work_label: None,
            matchers: Vec::new(),
            window: Duration::from_secs(3600),
            timeout: Duration::from_secs(10),
        })
    }
}

/// The labels of a silent GPU, and the time of its last scrape.
type Silent = (Vec<(String, String)>, f64);

pub struct Client {
    source: Source,
    tls: Tls,
    /// The last scrape of each silent GPU, as of the last query.
    seen: Vec<Silent>,
    /// Counters at the beginning of the window, as of the last query.
    before: Option<Fetched>,
    asked_seldom: Option<Instant>,
    since: BTreeMap<Key, Since>,
}

impl Client {
    pub fn new(source: Source) -> Result<Client, FleetError> {
        let tls = Tls::new(&source.authorities).map_err(|e| FleetError::Usage(format!("--ca-file: {e}")))?;
        Ok(Client { source, tls, seen: Vec::new(), before: None, asked_seldom: None, since: BTreeMap::new() })
    }

    fn url(&self) -> String {
        self.source.endpoint.to_string()
    }

    /// The current state of all GPUs. `early` receives it before the query for since when slow GPUs are slow.
    pub async fn refresh(&mut self, early: impl FnOnce(&Snapshot)) -> Result<Snapshot, FleetError> {
        let begin = Instant::now();
        let window_s = self.source.window.as_secs_f64();
        let mut collector = Collector::new(self.source.node_label.clone(), self.source.work_label.clone());
        let mut remarks = Vec::new();
        // Concurrently: Prometheus answers each query on its own thread.
        let seldom = self.asked_seldom.is_none_or(|asked| asked.elapsed() >= SELDOM);
        let heartbeats = self.join(&HEARTBEATS, None, |name| format!("timestamp({name})"));
        let all = self.all(names());
        let before = format!("{} offset {window_s:.0}s", self.all(counters()));
        // Values at the beginning of the window change slowly.
        let before = async { if seldom { Some(self.get(&before).await) } else { None } };
        let (all, before, seen) = tokio::join!(self.get(&all), before, self.get(&heartbeats));
        match before {
            Some(Ok(before)) => self.before = Some(before),
            Some(Err(e)) => remarks.push(format!("it is unknown whether errors are new: {e}")),
            None => {}
        }
        let answer = self.read(&all?, &mut |one| collector.now(&one))?;
        remarks
            .extend(answer.warnings.iter().map(|text| format!("Prometheus: {}", foreign::line(text, 200))));
        let mut unix_s = answer.at;
        // The rest is additional: without it, less is known.
        match seen.and_then(|seen| self.read(&seen, &mut |one| collector.seen(&one))) {
            Ok(answer) => unix_s = unix_s.or(answer.at),
            Err(e) => remarks.push(format!("ages are unknown: {e}")),
        }
        if let Some(before) = &self.before
            && let Err(e) = self.read(before, &mut |one| collector.before(&one))
        {
            remarks.push(format!("it is unknown whether errors are new: {e}"));
        }
        if seldom || collector.is_empty() {
            match self.ask_silent(&collector).await {
                Ok((at, seen)) => {
                    unix_s = unix_s.or(at);
                    self.seen = seen;
                }
                Err(e) => remarks.push(format!("silent GPUs are unknown: {e}")),
            }
        }
        for (labels, at) in &self.seen {
            let labels = labels.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into()));
            collector.seen(&Series { labels: labels.collect(), values: vec![(0.0, *at)] });
        }
        if collector.is_empty() {
            return Err(FleetError::Empty { url: self.url(), matchers: self.source.matchers.clone() });
        }
        if let NodeLabel::Named(label) = &self.source.node_label
            && !collector.has_nodes()
        {
            return Err(FleetError::NoNodeLabel {
                label: label.clone(),
                there: some(&collector.label_names),
            });
        }
        let collected = collector.finish();
        remarks.extend(collected.remarks);
        let unix_s = unix_s.unwrap_or_else(now_unix_s);
        let took_ms = begin.elapsed().as_secs_f64() * 1e3;
        let snapshot = Snapshot { unix_s, took_ms, window_s, gpus: collected.gpus, remarks };
        let mut snapshot = self.with_since(snapshot, seldom, early).await;
        if seldom {
            self.asked_seldom = Some(Instant::now());
        }
        snapshot.took_ms = begin.elapsed().as_secs_f64() * 1e3;
        Ok(snapshot)
    }

    /// Adds since when slow GPUs are slow. Queried again if other GPUs became slow, and at intervals.
    async fn with_since(
        &mut self,
        snapshot: Snapshot,
        seldom: bool,
        early: impl FnOnce(&Snapshot),
    ) -> Snapshot {
        let mut fleet = Fleet::new(snapshot);
        let slow = fleet.slow_with_equals();
        let slow_keys: Vec<Key> = slow.iter().map(|(row, _)| fleet.gpu(row).key.clone()).collect();
        self.since.retain(|key, _| slow_keys.contains(key));
        let all_known = slow_keys.iter().all(|key| self.since.contains_key(key));
        let mut failed = None;
        if !slow.is_empty() && (seldom || !all_known) {
            early(&fleet.snapshot);
            let mut utilisation = Matrix::new();
            let end = fleet.snapshot.unix_s;
            let asked = async {
                self.matrix(Reading::GpuUtil, end, &mut utilisation).await?;
                let mut found = Vec::new();
                for measure in Measure::ALL {
                    let of_measure =
                        |(row, _): &&(&GpuVerdict, _)| row.loss.is_some_and(|loss| loss.measure == measure);
                    let slow: Vec<_> = slow.iter().filter(of_measure).collect();
                    if slow.is_empty() {
                        continue;
                    }
                    let mut clocks = Matrix::new();
                    self.matrix(measure.reading(), end, &mut clocks).await?;
                    for (row, equals) in slow {
                        let key = &fleet.gpu(row).key;
                        found.extend(
                            since(key, equals, &clocks, &utilisation).map(|since| (key.clone(), since)),
                        );
                    }
                }
                Ok::<_, FleetError>(found)
            };
            match asked.await {
                Ok(found) => self.since.extend(found),
                Err(e) => failed = Some(format!("it is unknown since when GPUs are slow: {e}")),
            }
        }
        fleet.snapshot.remarks.extend(failed);
        for gpu in &mut fleet.snapshot.gpus {
            gpu.slow_since = self.since.get(&gpu.key).copied();
        }
        fleet.snapshot
    }

    /// A reading of every GPU over the window.
    async fn matrix(&self, reading: Reading, end: f64, matrix: &mut Matrix) -> Result<(), FleetError> {
        let of_reading = |name: &&'static str| match super::metrics::meaning(name) {
            Some(super::metrics::Meaning::Reading(of, _)) => of == reading,
            Some(super::metrics::Meaning::EngineActive) => reading == Reading::GpuUtil,
            _ => false,
        };
        let text = self.all(names().filter(of_reading));
        let mut each = |one: Series<'_>| {
            let Some(key) = super::collect::key_of(&one, &self.source.node_label) else { return };
            let factor = super::metrics::factor(one.name());
            let row = matrix.entry(key).or_default();
            let finite = one.values.iter().filter(|(_, value)| value.is_finite());
            row.extend(finite.map(|(t, value)| (*t as u64, value * factor)));
        };
        self.query_range(&text, end, &mut each).await.map(drop)
    }

    /// The readings of one GPU over the window.
    pub async fn history(&self, gpu: &Gpu) -> Result<History, FleetError> {
        let all: Vec<&str> = names().collect();
        let text = format!("{{__name__=~\"{}\",{}}}", all.join("|"), gpu.selector);
        let mut by_time: BTreeMap<u64, Collector> = BTreeMap::new();
        let node_label = &self.source.node_label;
        let mut each = |one: Series<'_>| {
            for (t, value) in &one.values {
                let at = by_time
                    .entry((t * 1e3) as u64)
                    .or_insert_with(|| Collector::new(node_label.clone(), None));
                at.now(&Series { labels: one.labels.clone(), values: vec![(*t, *value)] });
            }
        };
        let answer = self.query_range(&text, now_unix_s(), &mut each).await?;
        if answer.series == 0 {
            return Err(FleetError::Empty { url: self.url(), matchers: self.source.matchers.clone() });
        }
        let samples = by_time.into_iter().filter_map(|(ms, collector)| {
            let found = collector.finish().gpus.into_iter().find(|found| found.key == gpu.key)?;
            Some((ms as f64 / 1e3, found.sample))
        });
        Ok(History { gpu: gpu.clone(), step_s: self.step_s(), samples: samples.collect() })
    }

    fn step_s(&self) -> f64 {
        (self.source.window.as_secs_f64() / STEPS).max(LEAST_STEP_S).round()
    }

    /// All series with one of these names.
    fn all(&self, names: impl Iterator<Item = &'static str>) -> String {
        let names = names.collect::<Vec<_>>().join("|");
        let matchers: String = self.source.matchers.iter().map(|matcher| format!(",{matcher}")).collect();
        format!("{{__name__=~\"{names}\"{matchers}}}")
    }

    /// The series of each of these names in one expression, joined by `or`.
    fn join(&self, names: &[&str], more: Option<&Matcher>, each: impl Fn(&str) -> String) -> String {
        let matchers: Vec<String> = self.source.matchers.iter().chain(more).map(Matcher::to_string).collect();
        let matchers = matchers.join(",");
        let one = |name: &&str| each(&format!("{name}{{{matchers}}}"));
        names.iter().map(one).collect::<Vec<_>>().join(" or ")
    }

    /// The GPUs that were scraped within the window but are no longer: their labels, and the times of their last
    /// scrapes.
    async fn ask_silent(&self, collector: &Collector) -> Result<(Option<f64>, Vec<Silent>), FleetError> {
        let window_s = self.source.window.as_secs_f64();
        // One name per kind of exporter is enough if exporters are known.
        let names = if collector.is_empty() { &HEARTBEATS[..] } else { &ONE_HEARTBEAT_EACH };
        let gone =
            self.join(names, None, |name| format!("last_over_time({name}[{window_s:.0}s]) unless {name}"));
        let mut nodes = BTreeSet::new();
        let answer = self.query(&gone, &mut |one| nodes.extend(self.source.node_label.find(&one))).await?;
        let nodes: Vec<(String, String)> = nodes.into_iter().collect();
        let mut seen = Vec::new();
        let mut at = answer.at;
        if answer.series > 0 {
            let step = (window_s / 60.0).max(LEAST_STEP_S);
            // Only the few nodes of silent GPUs are queried, because a query of all GPUs takes long.
            let of_nodes = Matcher::any_of(&nodes);
            let times = self.join(names, of_nodes.as_ref(), |name| format!("timestamp({name})"));
            let text = format!("max_over_time(({times})[{window_s:.0}s:{step:.0}s])");
            let mut keep = |one: Series<'_>| {
                if let Some(at) = one.last() {
                    let labels = one.labels.iter().map(|(name, value)| (name.to_string(), value.to_string()));
                    seen.push((labels.collect(), at));
                }
            };
            at = at.or(self.query(&text, &mut keep).await?.at);
        }
        Ok((at, seen))
    }

    async fn query(&self, text: &str, each: &mut dyn FnMut(Series<'_>)) -> Result<Answer, FleetError> {
        self.read(&self.get(text).await?, each)
    }

    async fn query_range(
        &self,
        text: &str,
        end: f64,
        each: &mut dyn FnMut(Series<'_>),
    ) -> Result<Answer, FleetError> {
        let step = self.step_s();
        // Whole steps, so that the times of all ranges are equal.
        let end = (end / step).floor() * step;
        let start = end - self.source.window.as_secs_f64();
        let path =
            format!("/api/v1/query_range?query={}&start={start:.3}&end={end:.3}&step={step}", encoded(text));
        self.read(&self.fetch(&path).await?, each)
    }

    async fn get(&self, text: &str) -> Result<Fetched, FleetError> {
        self.fetch(&format!("/api/v1/query?query={}", encoded(text))).await
    }

    async fn fetch(&self, path: &str) -> Result<Fetched, FleetError> {
        let Source { endpoint, login, timeout, .. } = &self.source;
        let fetched = fetch(endpoint, path, login.as_ref(), &self.tls, MAX_ANSWER_BYTES, *timeout).await;
        let with_ca_file = !self.source.authorities.is_empty();
        fetched.map_err(|cause| FleetError::Fetch { url: self.url(), cause, with_ca_file })
    }

    fn read(&self, fetched: &Fetched, each: &mut dyn FnMut(Series<'_>)) -> Result<Answer, FleetError> {
        read_answer(self.url(), fetched, each)
    }
}

/// The series of an answer, or its error.
fn read_answer(
    url: String,
    fetched: &Fetched,
    each: &mut dyn FnMut(Series<'_>),
) -> Result<Answer, FleetError> {
    let Fetched { status, location, body } = fetched;
    let status = *status;
    match status {
        300..=399 => {
            // A user and a password in it are not shown.
            let to = location.as_deref().unwrap_or("another address");
            let to =
                Endpoint::with_login(to).map_or_else(|_| foreign::line(to, 200), |(to, _)| to.to_string());
            return Err(FleetError::Redirect { url, to });
        }
        401 | 403 | 407 => return Err(FleetError::Login { url, status }),
        _ => {}
    }
    let is_page = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'<');
    match answer::read(body, &mut |one| each(one)) {
        Ok(answer) if status == 200 => Ok(answer),
        Err(AnswerError::Refused { kind, text }) => {
            let (kind, text) = (foreign::line(&kind, 60), foreign::line(&text, 300));
            Err(match status {
                502..=504 => FleetError::Unavailable { url, status, said: format!("{kind}: {text}") },
                _ => FleetError::Refused { url, kind, text },
            })
        }
        _ if matches!(status, 429 | 502..=504) => {
            Err(FleetError::Unavailable { url, status, said: server_message(body) })
        }
        _ if status != 200 => Err(FleetError::Status { url, status, said: server_message(body) }),
        _ if is_page => Err(FleetError::WebPage { url }),
        Err(cause) => Err(FleetError::Answer { url, cause }),
        Ok(_) => Err(FleetError::Status { url, status, said: String::new() }),
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn now_unix_s() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0.0, |now| now.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: u16, location: Option<&str>, body: &str) -> String {
        let fetched =
            Fetched { status, location: location.map(str::to_owned), body: body.as_bytes().to_vec() };
        read_answer("http://p:9090".into(), &fetched, &mut |_| {}).unwrap_err().to_string()
    }

    #[test]
    fn each_invalid_answer_has_a_message() {
        let error =
            |kind: &str| format!(r#"{{"status":"error","errorType":"{kind}","error":"why\u001b[2J"}}"#);
        for (status, location, body, wanted) in [
            (
                302,
                Some("https://u:secret@else/login"),
                "",
                "redirects to https://else/login, which is not followed",
            ),
            (401, None, "", "--bearer-token-file"),
            (403, None, "<html>", "--bearer-token-file"),
            (404, None, "404 page not found", "route prefix (--web.route-prefix)? 404 page not found"),
            (400, None, &error("bad_data"), r"refuses the query (bad_data): why\u001b[2J"),
            (422, None, &error("execution"), "refuses the query (execution)"),
            (503, None, &error("timeout"), "cannot answer now (HTTP 503): timeout"),
            (503, None, "busy", "cannot answer now (HTTP 503): busy"),
            (200, None, " <!doctype html>", "answers with a web page"),
            (200, None, "{}", "it has no status"),
            (
                200,
                None,
                r#"{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}"#,
                "its result is a scalar",
            ),
            (500, None, "oops", "answers HTTP 500"),
        ] {
            let words = read(status, location, body);
            assert!(words.contains(wanted), "{words:?} has no {wanted:?}");
            assert!(!words.contains("secret") && !words.contains('\u{1b}'), "{words:?}");
        }
    }

    #[test]
    fn addresses_are_taken_as_they_are_copied() {
        for url in ["p:9090", "http://p:9090/", "http://p:9090/graph", "http://p:9090/api/v1"] {
            assert_eq!(Source::at(url).unwrap().endpoint.to_string(), "http://p:9090");
        }
        let with_login = Source::at("https://me:secret@p/prom").unwrap();
        assert_eq!(with_login.endpoint.to_string(), "https://p/prom");
        assert!(with_login.login.is_some() && !format!("{with_login:?}").contains("secret"));
        assert!(Source::at("ftp://p").is_err());
    }
}
