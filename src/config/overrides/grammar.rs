//! The grammar of an override, piece by piece as Hydra's lexer and parser read it.

use super::element::{Element, Quote};
use super::function::{Call, Outcome, evaluate};
use super::sweep::Sweep;
use super::{Action, Given, Override};
use crate::config::lexeme::{
    Lexeme, first_lexeme, float_value, int_value, is_space, unescaped, unsigned_len,
};
use crate::config::value_tree::MAX_KEY_PARTS;

/// Lists, maps and calls nest this deep at most.
const MAX_DEPTH: usize = 24;

pub(super) fn parse(text: &str) -> Result<Override, String> {
    let (action, rest) = match text {
        _ if text.starts_with("++") => (Action::Put, &text[2..]),
        _ if text.starts_with('+') => (Action::Add, &text[1..]),
        _ if text.starts_with('~') => (Action::Remove, &text[1..]),
        _ => (Action::Change, text),
    };
    let (key, raw) = match rest.split_once('=') {
        Some((key, raw)) => (key, Some(raw)),
        None => (rest, None),
    };
    let (key, package) = parse_key(key)?;
    let value = match raw {
        Some(raw) => Some(Values::parse(raw)?),
        None if action == Action::Remove => None,
        None => return Err(format!("no value; write {}{key}=VALUE", action.prefix())),
    };
    Ok(Override { text: text.to_owned(), action, key, package, value })
}

/// `a.b`, `group`, `group/sub`, each perhaps with `@package`.
fn parse_key(key: &str) -> Result<(String, Option<String>), String> {
    let (key, package) = match key.split_once('@') {
        Some((key, package)) => (key, Some(package)),
        None => (key, None),
    };
    if package.is_some_and(|package| package.contains(':')) {
        return Err("renaming a package (group@from:to) is not part of the grammar".into());
    }
    if key.is_empty() {
        return Err("it names no key".into());
    }
    match key.contains('/') {
        true if key.contains(['.', '$']) => {
            return Err(format!("{key:?} mixes the two: write a group or a dotted key"));
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

/// A name of letters, digits, `_`, `-` and `$`, or where keys are dotted the number of a list's item.
fn check_part(part: &str, may_be_number: bool) -> Result<(), String> {
    if let Some(c) = part.chars().find(|&c| !(c.is_ascii_alphanumeric() || "_-$".contains(c))) {
        return Err(format!("{c:?} cannot stand in a key"));
    }
    match part.as_bytes().first() {
        None => Err("an empty part cannot stand in a key".into()),
        Some(b'-') => Err("'-' cannot stand in a key as its first character".into()),
        Some(digit) if digit.is_ascii_digit() => {
            match may_be_number && unsigned_len(part.as_bytes()) == part.len() {
                true => Ok(()),
                false => Err(format!("{part:?} cannot stand in a key: it begins with a digit")),
            }
        }
        Some(_) => Ok(()),
    }
}

/// One piece of the text after the `=`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Token<'t> {
    /// `( ) [ ] { } , : =`; the space around it belongs to it.
    Mark(char, &'t str),
    Quoted(&'t str, Quote),
    Interpolation(&'t str),
    Plain(Lexeme, &'t str),
}

/// The text after the `=`, in pieces.
struct Values<'t> {
    tokens: Vec<Token<'t>>,
    at: usize,
    depth: usize,
}

impl<'t> Values<'t> {
    fn parse(raw: &'t str) -> Result<Given, String> {
        let tokens = tokens(raw.trim_start_matches([' ', '\t']))?;
        if tokens.is_empty() {
            return Ok(Given::One(Element::Text(String::new())));
        }
        let mut values = Values { tokens, at: 0, depth: 0 };
        let first = values.outcome()?;
        if values.at == values.tokens.len() {
            return match first {
                Outcome::One(element) => Ok(Given::One(element)),
                Outcome::Many(sweep) => Ok(Given::Many(sweep)),
            };
        }
        let mut items = vec![first.one("a list of choices")?];
        while values.eat(',') {
            items.push(values.outcome()?.one("a list of choices")?);
        }
        match values.peek() {
            None => Ok(Given::Many(Sweep::Choice { items, simple: true })),
            Some(token) => Err(format!("{} is not expected here", told(token))),
        }
    }

    fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.at).copied()
    }

    fn eat(&mut self, mark: char) -> bool {
        let found = matches!(self.peek(), Some(Token::Mark(found, _)) if found == mark);
        self.at += usize::from(found);
        found
    }

    fn element(&mut self, inside: &str) -> Result<Element, String> {
        self.outcome()?.one(inside)
    }

    /// A value, or where a function makes one, a sweep.
    fn outcome(&mut self) -> Result<Outcome, String> {
        if self.depth == MAX_DEPTH {
            return Err("it nests too deep".into());
        }
        self.depth += 1;
        let outcome = match self.peek() {
            Some(Token::Mark('[', _)) => self.list().map(Outcome::One),
            Some(Token::Mark('{', _)) => self.dict().map(Outcome::One),
            Some(Token::Plain(Lexeme::Name, name))
                if matches!(self.tokens.get(self.at + 1), Some(Token::Mark('(', _))) =>
            {
                self.call(name)
            }
            Some(Token::Quoted(raw, quote)) => {
                self.at += 1;
                let text = unquoted(raw, quote);
                match self.peek() {
                    Some(
                        Token::Plain(..) | Token::Quoted(..) | Token::Interpolation(_) | Token::Mark(':', _),
                    ) => Err(format!("nothing may stand after the quoted text {raw}")),
                    _ => Ok(Outcome::One(Element::Quoted(text, quote))),
                }
            }
            _ => self.primitive(true).map(Outcome::One),
        };
        self.depth -= 1;
        outcome
    }

    fn list(&mut self) -> Result<Element, String> {
        self.at += 1;
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
        self.at += 1;
        let mut entries: Vec<(Element, Element)> = Vec::new();
        if self.eat('}') {
            return Ok(Element::Dict(entries));
        }
        loop {
            if let Some(Token::Quoted(raw, _)) = self.peek() {
                return Err(format!("{raw} cannot be a key of a map: keys are not quoted"));
            }
            let key = self.primitive(false)?;
            if !self.eat(':') {
                return Err("the map wants `key: value`".into());
            }
            let value = self.element("a map")?;
            // As in Python, the later of two equal keys wins and the first keeps its place.
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

    fn call(&mut self, name: &'t str) -> Result<Outcome, String> {
        self.at += 2;
        let mut call = Call { name, positional: Vec::new(), named: Vec::new() };
        if self.eat(')') {
            return evaluate(call);
        }
        loop {
            let named = match (self.peek(), self.tokens.get(self.at + 1)) {
                (Some(Token::Plain(Lexeme::Name, name)), Some(Token::Mark('=', _))) => Some(name),
                _ => None,
            };
            if let Some(name) = named {
                self.at += 2;
                let value = self.outcome()?;
                call.named.push((name, value));
            } else if call.named.is_empty() {
                let value = self.outcome()?;
                call.positional.push(value);
            } else {
                return Err(format!("{name}: a plain argument follows a named one"));
            }
            if self.eat(')') {
                return evaluate(call);
            }
            if !self.eat(',') {
                return Err(format!("the arguments of {name} are not closed"));
            }
        }
    }

    /// Unquoted text: one piece keeps its type, several are text.
    fn primitive(&mut self, colons: bool) -> Result<Element, String> {
        let start = self.at;
        while let Some(token) = self.peek() {
            match token {
                Token::Plain(..) => {}
                Token::Interpolation(_) | Token::Mark(':', _) if colons => {}
                _ => break,
            }
            self.at += 1;
        }
        let mut pieces = &self.tokens[start..self.at];
        if let [Token::Plain(Lexeme::Space, _), rest @ ..] = pieces {
            pieces = rest;
        }
        if let [rest @ .., Token::Plain(Lexeme::Space, _)] = pieces {
            pieces = rest;
        }
        match pieces {
            [] => match self.peek() {
                Some(Token::Mark(',' | ']' | '}' | ')', _)) | None => Err("a value is missing".into()),
                Some(token) => Err(format!("{} is not expected here", told(token))),
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

fn told(token: Token<'_>) -> String {
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
                    let (lexeme, len) = first_lexeme(rest)
                        .ok_or_else(|| format!("{first:?} cannot stand outside of quotes"))?;
                    (Token::Plain(lexeme, &rest[..len]), len)
                }
            },
        };
        tokens.push(token);
        rest = &rest[len..];
    }
    Ok(tokens)
}

/// A mark with the space that belongs to it: before it except for `[` and `{`, after it except where it closes.
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

/// Quoted text ends at the first quote that an even number of backslashes stands before.
fn quoted_token(rest: &str, quote: Quote) -> Result<(Token<'_>, usize), String> {
    let mut backslashes = 0;
    for (at, c) in rest.char_indices().skip(1) {
        if c == quote.mark() && backslashes % 2 == 0 {
            return Ok((Token::Quoted(&rest[..=at], quote), at + 1));
        }
        backslashes = if c == '\\' { backslashes + 1 } else { 0 };
    }
    Err(format!("the quote {} is not closed", quote.mark()))
}

/// The text between the quotes. Only backslashes that stand before a quote escape anything.
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
