//! The grammar of overrides, as in Hydra's lexer and parser.

use super::element::{Element, Quote};
use super::function::{Call, evaluate};
use super::sweep::Sweep;
use super::{Action, Override, OverrideValue};
use crate::lexeme::{Lexeme, first_lexeme, float_value, int_value, is_space, unescaped, unsigned_len};
use crate::value_tree::MAX_KEY_PARTS;

/// Maximum nesting of lists, maps and calls.
const MAX_DEPTH: usize = 24;

pub(super) fn parse(text: &str) -> Result<Override, String> {
    let (action, rest) = Action::split_prefix(text);
    let (key, raw) = match rest.split_once('=') {
        Some((key, raw)) => (key, Some(raw)),
        None => (rest, None),
    };
    let (key, package) = parse_key(key)?;
    let value = match raw {
        Some(raw) => Some(Parser::parse(raw)?),
        None if action == Action::Remove => None,
        None => return Err(format!("missing value; write {}{key}=VALUE", action.prefix())),
    };
    Ok(Override { text: text.to_owned(), action, key, package, value })
}

/// `a.b`, `group` or `group/sub`, each with an optional `@package`.
fn parse_key(key: &str) -> Result<(String, Option<String>), String> {
    let (key, package) = match key.split_once('@') {
        Some((key, package)) => (key, Some(package)),
        None => (key, None),
    };
    if package.is_some_and(|package| package.contains(':')) {
        return Err("renaming a package (group@from:to) is not supported".into());
    }
    if key.is_empty() {
        return Err("missing key".into());
    }
    match key.contains('/') {
        true if key.contains(['.', '$']) => {
            return Err(format!("{key:?} mixes a group and a dotted key; write only one of them"));
        }
        true => key.split('/').try_for_each(|part| check_part(part, false))?,
        false => check_dotted(key)?,
    }
    package.map_or(Ok(()), check_dotted)?;
    Ok((key.to_owned(), package.map(str::to_owned)))
}

fn check_dotted(key: &str) -> Result<(), String> {
    let parts: Vec<&str> = key.split('.').collect();
    if parts.len() > MAX_KEY_PARTS {
        return Err(format!("the key has more than {MAX_KEY_PARTS} parts"));
    }
    parts.iter().try_for_each(|part| check_part(part, parts.len() > 1))
}

/// A part is a name of letters, digits, `_`, `-` and `$`. In a dotted key it can also be a list index.
fn check_part(part: &str, may_be_number: bool) -> Result<(), String> {
    if let Some(c) = part.chars().find(|&c| !(c.is_ascii_alphanumeric() || "_-$".contains(c))) {
        return Err(format!("{c:?} is not allowed in a key"));
    }
    match part.as_bytes().first() {
        None => Err("an empty part is not allowed in a key".into()),
        Some(b'-') => Err("'-' is not allowed in a key as its first character".into()),
        Some(digit) if digit.is_ascii_digit() => {
            match may_be_number && unsigned_len(part.as_bytes()) == part.len() {
                true => Ok(()),
                false => Err(format!("{part:?} is not allowed in a key: it starts with a digit")),
            }
        }
        Some(_) => Ok(()),
    }
}

/// A token of the text after the `=`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Token<'t> {
    /// One of `( ) [ ] { } , : =`, with the space around it.
    Mark(char, &'t str),
    Quoted(&'t str, Quote),
    Interpolation(&'t str),
    Plain(Lexeme, &'t str),
}

/// The parser of the text after the `=`.
struct Parser<'t> {
    tokens: Vec<Token<'t>>,
    next: usize,
    depth: usize,
}

impl<'t> Parser<'t> {
    fn parse(raw: &'t str) -> Result<OverrideValue, String> {
        let tokens = tokens(raw.trim_start_matches([' ', '\t']))?;
        if tokens.is_empty() {
            return Ok(OverrideValue::Single(Element::Text(String::new())));
        }
        let mut parser = Parser { tokens, next: 0, depth: 0 };
        let first = parser.value()?;
        if parser.next == parser.tokens.len() {
            return Ok(first);
        }
        let mut items = vec![first.single("a list of choices")?];
        while parser.eat(',') {
            items.push(parser.element("a list of choices")?);
        }
        match parser.peek() {
            None => Ok(OverrideValue::Sweep(Sweep::Choice { items, simple: true })),
            Some(token) => Err(format!("unexpected {}", quoted_text(token))),
        }
    }

    fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.next).copied()
    }

    fn eat(&mut self, mark: char) -> bool {
        let found = matches!(self.peek(), Some(Token::Mark(found, _)) if found == mark);
        self.next += usize::from(found);
        found
    }

    fn element(&mut self, context: &str) -> Result<Element, String> {
        self.value()?.single(context)
    }

    /// Parses a value, or a function that is a sweep.
    fn value(&mut self) -> Result<OverrideValue, String> {
        if self.depth == MAX_DEPTH {
            return Err("nested too deep".into());
        }
        self.depth += 1;
        let value = match self.peek() {
            Some(Token::Mark('[', _)) => self.list().map(OverrideValue::Single),
            Some(Token::Mark('{', _)) => self.dict().map(OverrideValue::Single),
            Some(Token::Plain(Lexeme::Name, name))
                if matches!(self.tokens.get(self.next + 1), Some(Token::Mark('(', _))) =>
            {
                self.call(name)
            }
            Some(Token::Quoted(raw, quote)) => {
                self.next += 1;
                let text = unquoted(raw, quote);
                match self.peek() {
                    Some(
                        Token::Plain(..) | Token::Quoted(..) | Token::Interpolation(_) | Token::Mark(':', _),
                    ) => Err(format!("unexpected text after the quoted text {raw}")),
                    _ => Ok(OverrideValue::Single(Element::Quoted(text, quote))),
                }
            }
            _ => self.primitive(true).map(OverrideValue::Single),
        };
        self.depth -= 1;
        value
    }

    fn list(&mut self) -> Result<Element, String> {
        self.next += 1;
        let mut items = Vec::new();
        if self.eat(']') {
            return Ok(Element::List(items));
        }
        loop {
            items.push(self.element("a list")?);
            if self.eat(']') {
                return Ok(Element::List(items));
            }
            if !self.eat(',') {
                return Err("the list is not closed".into());
            }
        }
    }

    fn dict(&mut self) -> Result<Element, String> {
        self.next += 1;
        let mut entries: Vec<(Element, Element)> = Vec::new();
        if self.eat('}') {
            return Ok(Element::Dict(entries));
        }
        loop {
            if let Some(Token::Quoted(raw, _)) = self.peek() {
                return Err(format!("{raw} cannot be a key of a map: remove the quotes"));
            }
            let key = self.primitive(false)?;
            if !self.eat(':') {
                return Err("expected `key: value` in the map".into());
            }
            let value = self.element("a map")?;
            // As in Python, the later of two equal keys wins, at the position of the first.
            match entries.iter_mut().find(|(known, _)| *known == key) {
                Some(entry) => entry.1 = value,
                None => entries.push((key, value)),
            }
            if self.eat('}') {
                return Ok(Element::Dict(entries));
            }
            if !self.eat(',') {
                return Err("the map is not closed".into());
            }
        }
    }

    fn call(&mut self, name: &'t str) -> Result<OverrideValue, String> {
        self.next += 2;
        let mut call = Call { name, positional: Vec::new(), named: Vec::new() };
        if self.eat(')') {
            return evaluate(call);
        }
        loop {
            let named = match (self.peek(), self.tokens.get(self.next + 1)) {
                (Some(Token::Plain(Lexeme::Name, name)), Some(Token::Mark('=', _))) => Some(name),
                _ => None,
            };
            if let Some(name) = named {
                self.next += 2;
                let value = self.value()?;
                call.named.push((name, value));
            } else if call.named.is_empty() {
                let value = self.value()?;
                call.positional.push(value);
            } else {
                return Err(format!("{name}: positional argument after a named one"));
            }
            if self.eat(')') {
                return evaluate(call);
            }
            if !self.eat(',') {
                return Err(format!("the arguments of {name} are not closed"));
            }
        }
    }

    /// Parses unquoted text: a single lexeme keeps its type, several are text.
    fn primitive(&mut self, colons: bool) -> Result<Element, String> {
        let start = self.next;
        while let Some(token) = self.peek() {
            match token {
                Token::Plain(..) => {}
                Token::Interpolation(_) | Token::Mark(':', _) if colons => {}
                _ => break,
            }
            self.next += 1;
        }
        let mut pieces = &self.tokens[start..self.next];
        if let [Token::Plain(Lexeme::Space, _), rest @ ..] = pieces {
            pieces = rest;
        }
        if let [rest @ .., Token::Plain(Lexeme::Space, _)] = pieces {
            pieces = rest;
        }
        match pieces {
            [] => match self.peek() {
                Some(Token::Mark(',' | ']' | '}' | ')', _)) | None => Err("missing value".into()),
                Some(token) => Err(format!("unexpected {}", quoted_text(token))),
            },
            [Token::Plain(lexeme, text)] => plain(*lexeme, text),
            pieces => Ok(Element::Text(pieces.iter().map(piece_text).collect())),
        }
    }
}

fn plain(lexeme: Lexeme, text: &str) -> Result<Element, String> {
    Ok(match lexeme {
        Lexeme::Null => Element::Null,
        Lexeme::Bool => Element::Bool(text.eq_ignore_ascii_case("true")),
        Lexeme::Int => {
            Element::Int(int_value(text).ok_or_else(|| format!("{text} does not fit in 64 bits"))?)
        }
        Lexeme::Float => Element::Float(float_value(text)),
        Lexeme::Escape => Element::Text(unescaped(text)),
        Lexeme::Name | Lexeme::Space | Lexeme::Other => Element::Text(text.to_owned()),
    })
}

fn piece_text(token: &Token<'_>) -> String {
    match token {
        Token::Plain(Lexeme::Escape, text) => unescaped(text),
        Token::Plain(_, text) | Token::Interpolation(text) | Token::Mark(_, text) => (*text).to_owned(),
        Token::Quoted(raw, _) => (*raw).to_owned(),
    }
}

fn quoted_text(token: Token<'_>) -> String {
    match token {
        Token::Mark(mark, _) => format!("{mark:?}"),
        Token::Quoted(text, _) | Token::Interpolation(text) | Token::Plain(_, text) => format!("{text:?}"),
    }
}

fn tokens(raw: &str) -> Result<Vec<Token<'_>>, String> {
    let mut tokens = Vec::new();
    let mut rest = raw;
    while let Some(first) = rest.chars().next() {
        let (token, len) = match first {
            '\'' => quoted_token(rest, Quote::Single)?,
            '"' => quoted_token(rest, Quote::Double)?,
            '$' if rest.starts_with("${") => match rest.find('}') {
                Some(end) if end > 2 => (Token::Interpolation(&rest[..=end]), end + 1),
                _ => (Token::Plain(Lexeme::Other, "$"), 1),
            },
            _ => match mark_token(rest) {
                Some(found) => found,
                None => {
                    let (lexeme, len) =
                        first_lexeme(rest).ok_or_else(|| format!("{first:?} must be quoted"))?;
                    (Token::Plain(lexeme, &rest[..len]), len)
                }
            },
        };
        tokens.push(token);
        rest = &rest[len..];
    }
    Ok(tokens)
}

/// A mark with its space: before it except for `[` and `{`, after it except for closing brackets.
fn mark_token(rest: &str) -> Option<(Token<'_>, usize)> {
    let bytes = rest.as_bytes();
    let spaces = |from: usize| bytes[from..].iter().take_while(|&&byte| is_space(byte)).count();
    let before = spaces(0);
    let mark = *bytes.get(before)?;
    let len = match mark {
        b'[' | b'{' if before == 0 => 1 + spaces(1),
        b'(' | b',' | b':' | b'=' => before + 1 + spaces(before + 1),
        b')' | b']' | b'}' => before + 1,
        _ => return None,
    };
    Some((Token::Mark(char::from(mark), &rest[..len]), len))
}

/// Quoted text ends at the first quote after an even number of backslashes.
fn quoted_token(rest: &str, quote: Quote) -> Result<(Token<'_>, usize), String> {
    let mut backslashes = 0;
    for (index, c) in rest.char_indices().skip(1) {
        if c == quote.mark() && backslashes % 2 == 0 {
            return Ok((Token::Quoted(&rest[..=index], quote), index + 1));
        }
        backslashes = if c == '\\' { backslashes + 1 } else { 0 };
    }
    Err(format!("missing closing quote {}", quote.mark()))
}

/// The text between the quotes. Backslashes escape only before a quote.
fn unquoted(raw: &str, quote: Quote) -> String {
    let mut out = String::new();
    let mut backslashes = 0;
    for c in raw.chars().skip(1) {
        if c == '\\' {
            backslashes += 1;
            continue;
        }
        let kept = if c == quote.mark() { backslashes / 2 } else { backslashes };
        out.extend(std::iter::repeat_n('\\', kept));
        backslashes = 0;
        out.push(c);
    }
    // The closing quote.
    out.pop();
    out
}
