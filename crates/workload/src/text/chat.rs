//! Chat templates in Jinja, rendered as in Hugging Face transformers and llama.cpp. A template is untrusted
//! code: its steps and its output are limited.

use std::io::{self, Write};

use minijinja::{Environment, Error, ErrorKind, context, syntax::SyntaxConfig};

use crate::text::TextError;
use llmprof_base::units;

const NAME: &str = "chat";
/// Steps of a template; those of models need a few hundred for a conversation with one message.
const MAX_STEPS: u64 = 50_000;
/// Bytes that a template may add to the message, which may occur in it several times.
const MAX_ADDED_BYTES: usize = 1_000_000;
const MAX_COPIES: usize = 4;

#[derive(Debug)]
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    bos: Option<String>,
    eos: Option<String>,
}

impl ChatTemplate {
    pub fn new(source: String, bos: Option<String>, eos: Option<String>) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        // The settings of transformers.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| TextError::Template(message(&e)))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(MAX_STEPS));
        environment.add_function("raise_exception", |why: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, why))
        });
        environment.add_template_owned(NAME, source).map_err(|e| TextError::Template(message(&e)))?;
        Ok(ChatTemplate { environment, bos, eos })
    }

    /// A conversation with one message, up to the start of the answer.
    pub fn user_message(&self, text: &str) -> Result<String, TextError> {
        let messages = vec![context! { role => "user", content => text }];
        let (bos_token, eos_token) = (self.bos.as_deref(), self.eos.as_deref());
        let limit = MAX_ADDED_BYTES.saturating_add(MAX_COPIES.saturating_mul(text.len()));
        let mut output = Output { bytes: Vec::new(), limit };
        self.environment
            .get_template(NAME)
            .and_then(|template| {
                let values = context! { messages, bos_token, eos_token, add_generation_prompt => true };
                template.render_captured_to(values, &mut output).map(drop)
            })
            .map_err(|e| TextError::Template(message(&e)))?;
        // A template and its values are text, so the output is text.
        Ok(String::from_utf8_lossy(&output.bytes).into_owned())
    }
}

/// A text of limited length.
struct Output {
    bytes: Vec<u8>,
    limit: usize,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            let limit = units::bytes(self.limit as u64);
            let text = format!("its output is longer than the limit of {limit}");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn message(error: &Error) -> String {
    let line = error.line().map_or_else(String::new, |line| format!(" (line {line})"));
    match error.kind() {
        ErrorKind::OutOfFuel => {
            format!("it needs more than the limit of {} steps{line}", units::grouped(MAX_STEPS as i64))
        }
        ErrorKind::WriteFailure => match std::error::Error::source(error) {
            Some(cause) => cause.to_string(),
            None => format!("{error}{line}"),
        },
        _ => format!("{error}{line}"),
    }
}
