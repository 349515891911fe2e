//! The load of a configuration.

use std::{ffi::OsString, path::Path, sync::Arc, time::Duration};

use thiserror::Error;

use crate::inputs::Model;
use llmprof_base::{
    read::{self, MAX_DOCUMENT},
    secret::Secret,
};
use llmprof_config::{Api, ArrivalKind, LoadConfig, RunConfig, ServerConfig, ServerRuntime, Urls};
use llmprof_event::ServerKind;
use llmprof_record::state::MAX_WATCHED;
use llmprof_sources::{
    attach::{OutputTo, Target},
    server::{
        Arrivals, Endpoint, EndpointError, Gaps, LoadPlan, MetricsAt, Prompts, TraceError, data_url,
        read_trace,
    },
};
use llmprof_workload::{
    PromptSet, Workload,
    text::{TextError, Tokenizer},
};

/// The number of different images.
const PICTURES: u64 = 8;
/// The default address of a server that this program starts.
const USUAL_URL: &str = "http://127.0.0.1:8000";

#[derive(Debug, Error)]
pub enum ServerPlanError {
    #[error("runtime.{0} is missing: compose it from conf/runtime, e.g. runtime=openai")]
    NoConfig(&'static str),
    #[error("runtime.server.url: give the server's address, or runtime.server.command to start one")]
    NoUrl,
    #[error("{key}: {cause}")]
    Url { key: &'static str, cause: EndpointError },
    #[error("runtime.load.rate: arrivals={0} need a rate in requests per second")]
    NoRate(&'static str),
    #[error("runtime.requests=null means all of a trace or of the texts, and there are none; give a number")]
    NoRequests,
    #[error("runtime.load.trace: give a file of requests")]
    NoTrace,
    #[error("{key}: cannot read {file}: {cause}")]
    Unreadable { key: &'static str, file: String, cause: std::io::Error },
    #[error("runtime.load.trace: {file}: {cause}")]
    Trace { file: String, cause: TraceError },
    #[error("runtime.server.command: {0:?} is not a command line: it has an unclosed quote, or it is empty")]
    Command(String),
    #[error("runtime.server.tokenizer: {0}")]
    Tokenizer(TextError),
    #[error("telemetry.server: {0} servers, more than the limit of {MAX_WATCHED}")]
    ManyServers(usize),
    #[error("runtime.load.image_pixels needs runtime.server.api=chat, and at most 4096")]
    Image,
}

/// The kind of server of a runtime.
fn server_kind(runtime: ServerRuntime) -> ServerKind {
    match runtime {
        ServerRuntime::OpenAi => ServerKind::OpenAi,
        ServerRuntime::Vllm => ServerKind::Vllm,
        ServerRuntime::Sglang => ServerKind::Sglang,
        ServerRuntime::TensorRtLlm => ServerKind::TensorRtLlm,
        ServerRuntime::LlamaCpp => ServerKind::LlamaCpp,
    }
}

/// The load on the server of the runtime.
pub fn load_plan(
    config: &RunConfig,
    workload: &Workload,
    tokenizer: Option<Arc<Tokenizer>>,
) -> Result<LoadPlan, ServerPlanError> {
    let runtime = config.runtime.name.server().ok_or(ServerPlanError::NoConfig("server"))?;
    let kind = server_kind(runtime);
    let server = config.runtime.server().ok_or(ServerPlanError::NoConfig("server"))?;
    let load = config.runtime.load().ok_or(ServerPlanError::NoConfig("load"))?;
    let url = match (&server.url, &server.command) {
        (Some(url), _) => url.as_str(),
        (None, Some(_)) => USUAL_URL,
        (None, None) => return Err(ServerPlanError::NoUrl),
    };
    let endpoint = read_url("runtime.server.url", url)?;
    let arrivals = arrivals(load)?;
    let requests = match (&arrivals, config.runtime.requests) {
        (Arrivals::Trace { entries, .. }, None) => entries.len() as u32,
        (Arrivals::Trace { entries, .. }, Some(wanted)) => wanted.min(entries.len() as u32),
        _ => workload.requests,
    };
    if requests == 0 {
        return Err(ServerPlanError::NoRequests);
    }
    let prompts = match &workload.prompts {
        PromptSet::Random { tokens, .. } => {
            Prompts::Synthetic { tokens: *tokens, shared: load.shared_prefix, nonce: load.nonce }
        }
        PromptSet::Given(prompts) => {
            Prompts::Given(prompts.iter().map(|prompt| prompt.text.clone()).collect())
        }
    };
    // Strict servers refuse fields that the protocol does not have.
    let is_lenient = kind != ServerKind::OpenAi;
    let infer = &config.infer;
    Ok(LoadPlan {
        metrics: metrics_at(server, &endpoint)?,
        endpoint,
        continuous_usage: matches!(kind, ServerKind::Vllm | ServerKind::TensorRtLlm),
        kind,
        api: server.api,
        model: server.model.clone(),
        key: key(server),
        authorities: match &server.ca_file {
            None => Vec::new(),
            Some(file) => read::text(Path::new(file), MAX_DOCUMENT)
                .map_err(|cause| ServerPlanError::Unreadable {
                    key: "runtime.server.ca_file",
                    file: file.clone(),
                    cause,
                })?
                .into_bytes(),
        },
        timeout: Duration::from_secs_f64(server.timeout_s),
        ready: Duration::from_secs_f64(server.ready_s),
        arrivals,
        warmup: workload.warmup,
        requests,
        prompts,
        images: images(server, load, workload.seed)?,
        max_tokens: workload.output_tokens,
        ignore_eos: infer.ignore_eos && is_lenient,
        temperature: infer.do_sample.then_some(infer.temperature),
        top_p: (infer.do_sample && infer.top_p < 1.0).then_some(infer.top_p),
        turns: load.turns,
        think: Duration::from_secs_f64(load.think_s),
        max_failures: load.max_failures,
        gives_up: Duration::from_secs_f64(load.gives_up_s),
        seed: workload.seed,
        predictions: config.output.predictions.enable,
        tokenizer,
    })
}

/// The tokenizer of the server's model: the named one, else that of the model's weights if the user names the model.
pub fn served_tokenizer(
    config: &RunConfig,
    model: &Model,
    names_model: bool,
) -> Result<Option<Arc<Tokenizer>>, ServerPlanError> {
    let tokenizer = match config.runtime.server().and_then(|server| server.tokenizer.as_ref()) {
        Some(dir) => Some(Tokenizer::from_dir(Path::new(dir)).map_err(ServerPlanError::Tokenizer)?),
        None if names_model => model.tokenizer().and_then(Result::ok),
        None => None,
    };
    Ok(tokenizer.map(Arc::new))
}

/// The command that starts the server, if there is one.
pub fn server_program(config: &RunConfig) -> Result<Option<Target>, ServerPlanError> {
    let command = config.runtime.server().and_then(|server| server.command.as_ref());
    let Some(command) = command else { return Ok(None) };
    let words = shlex::split(command).filter(|words| !words.is_empty());
    let words = words.ok_or_else(|| ServerPlanError::Command(command.clone()))?;
    Ok(Some(Target::Start {
        command: words.into_iter().map(OsString::from).collect(),
        output: OutputTo::Log,
    }))
}

/// The servers whose metrics are read during any run.
pub fn watched_servers(config: &RunConfig) -> Result<Vec<MetricsAt>, ServerPlanError> {
    let urls = config.telemetry.server.as_ref().map_or(&[][..], Urls::all);
    if urls.len() > MAX_WATCHED {
        return Err(ServerPlanError::ManyServers(urls.len()));
    }
    urls.iter().filter_map(|url| page_at("telemetry.server", Some(url)).transpose()).collect()
}

/// The exporter from which GPUs are read.
pub fn watched_gpus(config: &RunConfig) -> Result<Option<MetricsAt>, ServerPlanError> {
    page_at("telemetry.dcgm", config.telemetry.dcgm.as_deref())
}

fn page_at(key: &'static str, url: Option<&str>) -> Result<Option<MetricsAt>, ServerPlanError> {
    url.map(|url| MetricsAt::read(url).map_err(|cause| ServerPlanError::Url { key, cause })).transpose()
}

/// Read from the environment, without the line end that files leave.
fn key(server: &ServerConfig) -> Option<Secret> {
    let key = std::env::var(server.key_env.as_deref()?).ok()?.trim().to_owned();
    (!key.is_empty() && !key.contains(char::is_control)).then_some(Secret(key))
}

fn read_url(key: &'static str, url: &str) -> Result<Endpoint, ServerPlanError> {
    Endpoint::read(url).map_err(|cause| ServerPlanError::Url { key, cause })
}

fn metrics_at(server: &ServerConfig, endpoint: &Endpoint) -> Result<Option<MetricsAt>, ServerPlanError> {
    match server.metrics.as_str() {
        "none" => Ok(None),
        "auto" => Ok(Some(MetricsAt { endpoint: endpoint.clone(), path: None })),
        url => MetricsAt::read(url)
            .map(Some)
            .map_err(|cause| ServerPlanError::Url { key: "runtime.server.metrics", cause }),
    }
}

/// Synthetic images: enough different ones that no cache contains all of them.
fn images(server: &ServerConfig, load: &LoadConfig, seed: u64) -> Result<Arc<[String]>, ServerPlanError> {
    match load.image_pixels {
        None => Ok(Arc::default()),
        Some(side @ 1..=4096) if server.api == Api::Chat => {
            Ok((0..PICTURES).map(|n| data_url(side, seed ^ n)).collect())
        }
        Some(_) => Err(ServerPlanError::Image),
    }
}

fn arrivals(load: &LoadConfig) -> Result<Arrivals, ServerPlanError> {
    let (name, gaps) = match load.arrivals {
        ArrivalKind::Closed => return Ok(Arrivals::Closed { concurrency: load.concurrency.unwrap_or(1) }),
        ArrivalKind::Trace => {
            let file = load.trace.as_ref().ok_or(ServerPlanError::NoTrace)?;
            let text = read::text(Path::new(file), 1 << 30).map_err(|cause| ServerPlanError::Unreadable {
                key: "runtime.load.trace",
                file: file.clone(),
                cause,
            })?;
            let entries =
                read_trace(&text).map_err(|cause| ServerPlanError::Trace { file: file.clone(), cause })?;
            return Ok(Arrivals::Trace { entries: entries.into(), speed: load.speed });
        }
        ArrivalKind::Constant => ("constant", Gaps::Constant),
        ArrivalKind::Poisson => ("poisson", Gaps::Poisson),
        ArrivalKind::Gamma => ("gamma", Gaps::Gamma { shape: load.burstiness }),
    };
    let rate = load.rate.ok_or(ServerPlanError::NoRate(name))?;
    Ok(Arrivals::Open { gaps, rate, ramp_s: load.ramp_s, concurrency: load.concurrency })
}
