//! Steps that a program reports itself, as NVTX ranges.

use super::StepPhase;

/// An NVTX range. Its times are the host's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    pub domain: String,
    pub text: String,
    pub thread: u64,
    pub start_ns: u64,
    pub end_ns: u64,
}

/// The facts in the text of a range about a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reported {
    pub phase: StepPhase,
    pub tokens: Option<u32>,
    /// How many of them are of prompts.
    pub prompt_tokens: Option<u32>,
}

/// The phase of a step by the name that an engine gives it; `None` for anything else, also for names that people write themselves.
pub fn step_of_engine(text: &str) -> Option<StepPhase> {
    executor(text).or_else(|| execute_model(text)).or_else(|| batch(text)).map(|reported| reported.phase)
}

/// A step by the text of a range; `None` for ranges of anything else.
pub(super) fn reported(text: &str) -> Option<Reported> {
    executor(text).or_else(|| execute_model(text)).or_else(|| batch(text)).or_else(|| plain(text))
}

/// TensorRT-LLM: `[Executor] _forward_step 12: 1 ctx reqs, 512 ctx tokens, 3 gen reqs`.
fn executor(text: &str) -> Option<Reported> {
    let rest = text.strip_prefix("[Executor] _forward_step ")?;
    let (_, counts) = rest.split_once(':')?;
    let (mut context, mut context_tokens, mut generation) = (0, None, 0);
    for part in counts.split(',') {
        let (count, what) = part.trim().split_once(' ')?;
        let count: u32 = count.parse().ok()?;
        match what.trim() {
            "ctx reqs" => context = count,
            "ctx tokens" => context_tokens = Some(count),
            "gen reqs" => generation = count,
            _ => {}
        }
    }
    let tokens = context_tokens.unwrap_or(0).checked_add(generation);
    Some(Reported { phase: of_counts(context, generation), tokens, prompt_tokens: context_tokens })
}

/// vLLM: `execute_context_1(512)_generation_3(3)`, requests and their tokens; later `execute_515_context_1(sq512sk512)_generation_3(sq3sk90)`,
/// with all tokens, those of the queries and those of the contexts.
fn execute_model(text: &str) -> Option<Reported> {
    let rest = text.strip_prefix("execute_")?;
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches('_');
    let rest = rest.strip_prefix("context_")?;
    let (context, rest) = rest.split_once('(')?;
    let (context_tokens, rest) = rest.split_once(")_generation_")?;
    let (generation, rest) = rest.split_once('(')?;
    let (generation_tokens, _) = rest.split_once(')')?;
    let number = |text: &str| text.parse::<u32>().ok();
    let queries = |text: &str| {
        let text = text.strip_prefix("sq").unwrap_or(text);
        number(text.split(|c: char| !c.is_ascii_digit()).next()?)
    };
    let prompt_tokens = queries(context_tokens)?;
    let tokens = prompt_tokens.checked_add(queries(generation_tokens)?);
    let phase = of_counts(number(context)?, number(generation)?);
    Some(Reported { phase, tokens, prompt_tokens: Some(prompt_tokens) })
}

/// SGLang: `step[DECODE bs=8 toks=8]`, `step[EXTEND bs=1 toks=512]`.
fn batch(text: &str) -> Option<Reported> {
    let rest = text.strip_prefix("step[")?.split(']').next()?;
    let mut words = rest.split_whitespace();
    let phase = match words.next()?.to_ascii_lowercase().as_str() {
        "decode" => StepPhase::Decode,
        "extend" | "prefill" => StepPhase::Prefill,
        "mixed" => StepPhase::Mixed,
        _ => StepPhase::Other,
    };
    let of = |key: &str| words.clone().find_map(|word| word.strip_prefix(key)?.parse().ok());
    // A decode step has a token of each sequence.
    let tokens = of("toks=").or_else(|| of("bs=").filter(|_| phase == StepPhase::Decode));
    let prompt_tokens = match phase {
        StepPhase::Prefill => tokens,
        StepPhase::Decode => Some(0),
        _ => None,
    };
    Some(Reported { phase, tokens, prompt_tokens })
}

/// `decode_step`, `decode step 7`, `prefill`, `prefill step 0`: ranges that people write themselves.
fn plain(text: &str) -> Option<Reported> {
    let lower = text.trim().to_ascii_lowercase().replace(['_', '-'], " ");
    let words: Vec<&str> = lower.split_whitespace().collect();
    let is_number = |word: &&str| word.bytes().all(|byte| byte.is_ascii_digit());
    let phase = match words.as_slice() {
        ["decode", "step"] => StepPhase::Decode,
        ["decode", "step", n] if is_number(n) => StepPhase::Decode,
        ["prefill"] | ["prefill", "step"] => StepPhase::Prefill,
        ["prefill", "step", n] if is_number(n) => StepPhase::Prefill,
        _ => return None,
    };
    Some(Reported { phase, tokens: None, prompt_tokens: None })
}

fn of_counts(context: u32, generation: u32) -> StepPhase {
    match (context, generation) {
        (0, 0) => StepPhase::Other,
        (0, _) => StepPhase::Decode,
        (_, 0) => StepPhase::Prefill,
        _ => StepPhase::Mixed,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn steps_of_engines_are_read() {
        use StepPhase as P;
        for (text, wanted) in [
            (
                "[Executor] _forward_step 12: 1 ctx reqs, 512 ctx tokens, 3 gen reqs",
                Some((P::Mixed, Some(515))),
            ),
            ("[Executor] _forward_step 13: 0 ctx reqs, 0 ctx tokens, 4 gen reqs", Some((P::Decode, Some(4)))),
            (
                "[Executor] _forward_step 0: 2 ctx reqs, 64 ctx tokens, 0 gen reqs",
                Some((P::Prefill, Some(64))),
            ),
            ("[Executor] _forward_step", None),
            ("[Executor] _forward_step 3: x ctx reqs", None),
            ("execute_context_1(512)_generation_3(3)", Some((P::Mixed, Some(515)))),
            ("execute_context_0(0)_generation_32(32)", Some((P::Decode, Some(32)))),
            ("execute_context_0(0)_generation_", None),
            ("execute_32_context_0(sq0sk0)_generation_32(sq32sk55086)", Some((P::Decode, Some(32)))),
            ("execute_515_context_1(sq512sk512)_generation_3(sq3sk90)", Some((P::Mixed, Some(515)))),
            ("execute_model", None),
            ("step[DECODE bs=32]", Some((P::Decode, Some(32)))),
            ("step[EXTEND bs=15 toks=15360]", Some((P::Prefill, Some(15360)))),
            ("step[DECODE bs=8 toks=8]", Some((P::Decode, Some(8)))),
            ("step[EXTEND bs=1]", Some((P::Prefill, None))),
            ("decode_step", Some((P::Decode, None))),
            ("decode step 17", Some((P::Decode, None))),
            ("prefill", Some((P::Prefill, None))),
            ("decode", None),
            ("ncclAllReduce", None),
            ("", None),
        ] {
            let found = reported(text).map(|step| (step.phase, step.tokens));
            assert_eq!(found, wanted, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in ".{0,80}|\\[Executor\\] _forward_step [0-9a-z:, ]{0,60}|execute_[0-9]{0,3}_?context_[0-9()_a-z]{0,40}") {
            let _ = reported(&text);
        }
    }
}
