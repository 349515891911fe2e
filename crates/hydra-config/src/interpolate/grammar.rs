//! The grammar of text with `${…}` in it, as OmegaConf reads it.

use crate::lexeme::{Lexeme, first_lexeme, is_space, unescaped};

/// Maximum nesting of `${…}`, lists and maps.
const MAX_DEPTH: usize = 32;

/// A piece of a text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece {
    Text(String),
    Reference(Reference),
}

/// The content of `${…}`.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reference {
    /// A key; `up` is the number of leading dots of a relative one.
    Key { up: usize, parts: Vec<Name> },
    /// A resolver and its arguments.
    Call { name: Vec<Name>, arguments: Vec<Argument> },
}

/// A name, either literal or the value of another reference.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Name {
    Plain(String),
    Reference(Reference),
}

/// An argument of a resolver.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Argument {
    /// Quoted pieces, which are always text.
    Quoted(Vec<Piece>),
    List(Vec<Argument>),
    Dict(Vec<(Argument, Argument)>),
    /// Unquoted fragments: a single one keeps its type, several are text.
    Plain(Vec<Fragment>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fragment {
    Lexeme(Lexeme, String),
    Reference(Reference),
}

/// Splits a text into plain text and references.
pub(super) fn parse_text(text: &str) -> Result<Vec<Piece>, String> {
    Cursor { rest: text, depth: 0 }.text(None)
}

/// Parses one value, written like an argument (`oc.decode`).
pub(super) fn parse_argument(text: &str) -> Result<Argument, String> {
    let mut cursor = Cursor { rest: text.trim_matches([' ', '\t']), depth: 0 };
    let argument = cursor.argument()?;
    match cursor.rest {
        "" => Ok(argument),
        rest => Err(format!("unexpected {}", first_of(rest))),
    }
}

struct Cursor<'t> {
    rest: &'t str,
    depth: usize,
}

impl<'t> Cursor<'t> {
    /// Parses text up to its end, or up to and including the closing `quote`.
    fn text(&mut self, quote: Option<char>) -> Result<Vec<Piece>, String> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        loop {
            let backslashes = self.rest.bytes().take_while(|&byte| byte == b'\\').count();
            let after = &self.rest[backslashes..];
            let at_quote = quote.is_some_and(|quote| after.starts_with(quote));
            // Backslashes before a special character escape it and each other.
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
            return Err(format!("missing closing quote {quote}"));
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

    /// Consumes `mark` and the space before it, and the space after it unless it is a closing bracket.
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

    fn nested<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T, String>) -> Result<T, String> {
        if self.depth == MAX_DEPTH {
            return Err("nested too deep".into());
        }
        self.depth += 1;
        let outcome = step(self);
        self.depth -= 1;
        outcome
    }

    /// Parses from `${` to the matching `}`.
    fn reference(&mut self) -> Result<Reference, String> {
        self.nested(|cursor| {
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
                        return Err("missing ] after [".into());
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
                "" => "missing } after ${".into(),
                rest => format!("unexpected {} in ${{…}}", first_of(rest)),
            })
        })
    }

    fn name(&mut self) -> Result<Name, String> {
        if self.rest.starts_with("${") {
            return self.reference().map(Name::Reference);
        }
        let len = self.rest.find(|c| "\\{}()[]:. \t'\"".contains(c)).unwrap_or(self.rest.len());
        // A `$` before a `{` starts another reference and is not part of the name.
        let len = self.rest.find("${").map_or(len, |start| start.min(len));
        if len == 0 {
            return Err(match self.rest {
                "" => "missing } after ${".into(),
                rest => format!("missing key before {}", first_of(rest)),
            });
        }
        let name = self.rest[..len].to_owned();
        self.rest = &self.rest[len..];
        Ok(Name::Plain(name))
    }

    /// Parses arguments up to and including `close`. An empty argument is an empty text.
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
                    "" => format!("missing {close}"),
                    rest => format!("unexpected {}", first_of(rest)),
                });
            }
        }
    }

    fn argument(&mut self) -> Result<Argument, String> {
        self.nested(|cursor| {
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
                return Err("expected `key: value` in a map".into());
            }
            entries.push((key, self.argument()?));
            if self.eat_mark('}') {
                return Ok(Argument::Dict(entries));
            }
            if !self.eat_mark(',') {
                return Err("missing } after {".into());
            }
        }
    }

    /// Parses unquoted fragments up to a mark that ends them.
    fn plain(&mut self, is_value: bool) -> Result<Argument, String> {
        let mut fragments = Vec::new();
        loop {
            if is_value && self.rest.starts_with("${") {
                fragments.push(Fragment::Reference(self.reference()?));
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
                fragments.push(Fragment::Lexeme(Lexeme::Other, colon.to_owned()));
                self.rest = rest;
                continue;
            }
            let Some((lexeme, len)) = first_lexeme(self.rest) else {
                return Err(format!("{} must be quoted", first_of(self.rest)));
            };
            let text = &self.rest[..len];
            fragments.push(match lexeme {
                // `\=` and `\(` have no meaning here but are unescaped too.
                Lexeme::Escape => Fragment::Lexeme(Lexeme::Name, unescaped(text)),
                _ => Fragment::Lexeme(lexeme, text.to_owned()),
            });
            self.rest = &self.rest[len..];
        }
        match fragments.is_empty() {
            true => Err("missing value".into()),
            false => Ok(Argument::Plain(fragments)),
        }
    }
}

fn first_of(rest: &str) -> String {
    rest.chars().next().map_or_else(|| "the end".into(), |c| format!("{c:?}"))
}
