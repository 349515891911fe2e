//! Chat templates in Jinja, rendered as in Hugging Face transformers and llama.cpp.

use minijinja::{Environment, Error, ErrorKind, context, syntax::SyntaxConfig};

use super::TextError;

const NAME: &str = "chat";

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
        self.environment
            .get_template(NAME)
            .and_then(|template| {
                template.render(context! {
                    messages, bos_token, eos_token, add_generation_prompt => true,
                })
            })
            .map_err(|e| TextError::Template(message(&e)))
    }
}

fn message(error: &Error) -> String {
    let line = error.line().map_or_else(String::new, |line| format!(" (line {line})"));
    format!("{error}{line}")
}
