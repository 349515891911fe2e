//! The grammar of text with `${…}` in it, as OmegaConf reads it.

use crate::config::lexeme::{Lexeme, first_lexeme, is_space, unescaped};

/// `${…}` inside `${…}`, lists and maps nest this deep at most.
const MAX_DEPTH: usize = 32;

/// A part of a text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece {
    Text(String),
    Reference(Reference),
}

/// What stands between `${` and `}`.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reference {
    /// A key; `up` counts the dots of a relative one.
    Key { up: usize, parts: Vec<Name> },
    /// A resolver and its arguments.
    Call { name: Vec<Name>, arguments: Vec<Argument> },
}

/// A name that is written out, or that another reference gives.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Name {
    Plain(String),
    Reference(Reference),
}

/// An argument of a resolver.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Argument {
    /// Pieces between quotes: always text.
    Quoted(Vec<Piece>),
    List(Vec<Argument>),
    Dict(Vec<(Argument, Argument)>),
    /// Unquoted pieces: one keeps its type, several are text.
    Plain(Vec<Bit>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Bit {
    Lexeme(Lexeme, String),
    Reference(Reference),
}

/// Splits a text into what is plain and what is a reference.
pub(super) fn parse_text(text: &str) -> Result<Vec<Piece>, String> {
    Cursor { rest: text, depth: 0 }.text(None)
}

/// Reads one value, as an argument would be written (`oc.decode`).
pub(super) fn parse_argument(text: &str) -> Result<Argument, String> {
    let mut cursor = Cursor { rest: text.trim_matches([' ', '\t']), depth: 0 };
    let argument = cursor.argument()?;
    match cursor.rest {
        "" => Ok(argument),
        rest => Err(format!("{} is not expected", first_of(rest))),
    }
}

struct Cursor<'t> {
    rest: &'t str,
    depth: usize,
}

impl<'t> Cursor<'t> {
    /// Text up to its end, or up to the closing `quote`, which is taken.
    fn text(&mut self, quote: Option<char>) -> Result<Vec<Piece>, String> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        loop {
            let backslashes = self.rest.bytes().take_while(|&byte| byte == b'\\').count();
            let after = &self.rest[backslashes..];
            let at_quote = quote.is_some_and(|quote| after.starts_with(quote));
            // Backslashes escape what means something, and each other before it.
            if after.starts_with("${") || at_quote {
                plain.extend(std::iter::repeat_n('\\', backslashes / 2));
                let len = if at_quote { 1 } else { 2 };
                if backslashes % 2 == 1 {
                    plain.push_str(&after[..len]);
                    self.rest = &after[len..];
                    continue;
                }
                self.rest = after;
                if !plain.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                }
                if at_quote {
                    self.rest = &after[len..];
                    return Ok(pieces);
                }
                pieces.push(Piece::Reference(self.reference()?));
                continue;
            }
            plain.push_str(&self.rest[..backslashes]);
            self.rest = after;
            let Some(c) = after.chars().next() else { break };
            plain.push(c);
            self.rest = &after[c.len_utf8()..];
        }
        if let Some(quote) = quote {
            return Err(format!("the quote {quote} is not closed"));
        }
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Ok(pieces)
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    fn eat(&mut self, mark: char) -> bool {
        match self.rest.strip_prefix(mark) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Takes `mark` with the space before it, and where it does not close anything after it.
    fn eat_mark(&mut self, mark: char) -> bool {
        let before = self.rest;
        self.space();
        if !self.eat(mark) {
            self.rest = before;
            return false;
        }
        if !"]}".contains(mark) {
            self.space();
        }
        true
    }

    fn deeper<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T, String>) -> Result<T, String> {
        if self.depth == MAX_DEPTH {
            return Err("it nests too deep".into());
        }
        self.depth += 1;
        let outcome = step(self);
        self.depth -= 1;
        outcome
    }

    /// From `${` to its `}`.
    fn reference(&mut self) -> Result<Reference, String> {
        self.deeper(|cursor| {
            cursor.rest = &cursor.rest[2..];
            cursor.space();
            let dots = cursor.rest.bytes().take_while(|&byte| byte == b'.').count();
            cursor.rest = &cursor.rest[dots..];
            let mut bracketed = false;
            let mut parts = Vec::new();
            loop {
                if cursor.eat('[') {
                    bracketed = true;
                    parts.push(cursor.name()?);
                    if !cursor.eat(']') {
                        return Err("a [ without its ]".into());
                    }
                } else {
                    parts.push(cursor.name()?);
                }
                if !cursor.eat('.') && !cursor.rest.starts_with('[') {
                    break;
                }
            }
            if cursor.eat_mark('}') {
                return Ok(Reference::Key { up: dots, parts });
            }
            if dots == 0 && !bracketed && cursor.eat_mark(':') {
                let arguments = cursor.arguments('}')?;
                return Ok(Reference::Call { name: parts, arguments });
            }
            Err(match cursor.rest {
                "" => "a ${ without its }".into(),
                rest => format!("{} is not expected in ${{…}}", first_of(rest)),
            })
        })
    }

    fn name(&mut self) -> Result<Name, String> {
        if self.rest.starts_with("${") {
            return self.reference().map(Name::Reference);
        }
        let len = self.rest.find(|c| "\\{}()[]:. \t'\"".contains(c)).unwrap_or(self.rest.len());
        // A `$` before a `{` opens another reference; it is no part of a name.
        let len = self.rest.find("${").map_or(len, |at| at.min(len));
        if len == 0 {
            return Err(match self.rest {
                "" => "a ${ without its }".into(),
                rest => format!("a key is missing before {}", first_of(rest)),
            });
        }
        let name = self.rest[..len].to_owned();
        self.rest = &self.rest[len..];
        Ok(Name::Plain(name))
    }

    /// Arguments up to `close`, which is taken. One left out between commas is an empty text.
    fn arguments(&mut self, close: char) -> Result<Vec<Argument>, String> {
        let mut arguments = Vec::new();
        if self.eat_mark(close) {
            return Ok(arguments);
        }
        let empty = || Argument::Quoted(Vec::new());
        loop {
            let at_end = self.rest.trim_start_matches([' ', '\t']).starts_with([',', close]);
            arguments.push(if at_end { empty() } else { self.argument()? });
            if self.eat_mark(close) {
                return Ok(arguments);
            }
            if !self.eat_mark(',') {
                return Err(match self.rest {
                    "" => format!("a {close} is missing"),
                    rest => format!("{} is not expected", first_of(rest)),
                });
            }
        }
    }

    fn argument(&mut self) -> Result<Argument, String> {
        self.deeper(|cursor| {
            if let Some(quote) = cursor.rest.chars().next().filter(|c| "'\"".contains(*c)) {
                cursor.rest = &cursor.rest[1..];
                return cursor.text(Some(quote)).map(Argument::Quoted);
            }
            if cursor.eat('[') {
                cursor.space();
                return cursor.arguments(']').map(Argument::List);
            }
            if cursor.eat('{') {
                cursor.space();
                return cursor.dict();
            }
            cursor.plain(true)
        })
    }

    fn dict(&mut self) -> Result<Argument, String> {
        let mut entries = Vec::new();
        if self.eat_mark('}') {
            return Ok(Argument::Dict(entries));
        }
        loop {
            let key = self.plain(false)?;
            if !self.eat_mark(':') {
                return Err("a map wants `key: value`".into());
            }
            entries.push((key, self.argument()?));
            if self.eat_mark('}') {
                return Ok(Argument::Dict(entries));
            }
            if !self.eat_mark(',') {
                return Err("a map without its }".into());
            }
        }
    }

    /// Unquoted pieces up to a mark that ends them.
    fn plain(&mut self, is_value: bool) -> Result<Argument, String> {
        let mut bits = Vec::new();
        loop {
            if is_value && self.rest.starts_with("${") {
                bits.push(Bit::Reference(self.reference()?));
                continue;
            }
            let spaces = self.rest.bytes().take_while(|&byte| is_space(byte)).count();
            let next = self.rest[spaces..].chars().next();
            if next.is_none_or(|c| ",]}".contains(c)) || (!is_value && next == Some(':')) {
                break;
            }
            if next == Some(':') {
                let after = self.rest[spaces + 1..].bytes().take_while(|&byte| is_space(byte)).count();
                let (colon, rest) = self.rest.split_at(spaces + 1 + after);
                bits.push(Bit::Lexeme(Lexeme::Other, colon.to_owned()));
                self.rest = rest;
                continue;
            }
            let Some((lexeme, len)) = first_lexeme(self.rest) else {
                return Err(format!("{} cannot stand outside of quotes", first_of(self.rest)));
            };
            let text = &self.rest[..len];
            bits.push(match lexeme {
                // `\=` and `\(` mean nothing here, but are unescaped all the same.
                Lexeme::Escape => Bit::Lexeme(Lexeme::Name, unescaped(text)),
                _ => Bit::Lexeme(lexeme, text.to_owned()),
            });
            self.rest = &self.rest[len..];
        }
        match bits.is_empty() {
            true => Err("a value is missing".into()),
            false => Ok(Argument::Plain(bits)),
        }
    }
}

fn first_of(rest: &str) -> String {
    rest.chars().next().map_or_else(|| "the end".into(), |c| format!("{c:?}"))
}
