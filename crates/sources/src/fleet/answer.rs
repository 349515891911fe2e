//! Answers of Prometheus' HTTP API, read series by series: an answer is never stored as a tree.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use thiserror::Error;

/// One series: its labels, and its values with their times in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Series<'a> {
    pub labels: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub values: Vec<(f64, f64)>,
}

impl Series<'_> {
    pub fn label(&self, name: &str) -> Option<&str> {
        let found = self.labels.iter().find(|(label, _)| label == name);
        found.map(|(_, value)| value.as_ref()).filter(|value| !value.is_empty())
    }

    pub fn name(&self) -> &str {
        self.label("__name__").unwrap_or_default()
    }

    /// The last value that is a number.
    pub fn last(&self) -> Option<f64> {
        self.values.last().map(|(_, value)| *value).filter(|value| value.is_finite())
    }
}

/// The parts of an answer other than its series.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// The number of its series.
    pub series: usize,
    /// The time of the first value.
    pub at: Option<f64>,
    pub warnings: Vec<String>,
}

#[derive(Debug, Error, PartialEq)]
pub enum AnswerError {
    /// Prometheus' own message.
    #[error("{kind}: {text}")]
    Refused { kind: String, text: String },
    #[error("it has no status of Prometheus' API")]
    NoStatus,
    #[error("its result is a {0}, not a list of series")]
    Kind(String),
    #[error("it is not the JSON of Prometheus' API ({0})")]
    Json(String),
}

/// Maximum labels of a series; further ones are skipped.
const MAX_LABELS: usize = 100;
/// Maximum values of a series. Prometheus returns at most 11,000.
const MAX_VALUES: usize = 20_000;
const MAX_WARNINGS: usize = 10;

/// Reads an answer and passes each of its series to `each`.
pub fn read<'a>(body: &'a [u8], each: &mut dyn FnMut(Series<'a>)) -> Result<Answer, AnswerError> {
    let mut top = Top { each, answer: Answer::default(), status: None, kind: None, text: None, result: None };
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = (&mut json).deserialize_map(&mut top).and_then(|()| json.end());
    if let (Some("error"), kind, text) = (top.status.as_deref(), &top.kind, &top.text) {
        let part = |text: &Option<String>| text.clone().unwrap_or_else(|| "no reason given".to_owned());
        return Err(AnswerError::Refused { kind: part(kind), text: part(text) });
    }
    read.map_err(|e| AnswerError::Json(e.to_string()))?;
    match (top.status.as_deref(), top.result) {
        (Some("success"), Some(kind)) if kind == "scalar" || kind == "string" => Err(AnswerError::Kind(kind)),
        (Some("success"), _) => Ok(top.answer),
        _ => Err(AnswerError::NoStatus),
    }
}

/// The outermost object, and `data` in it.
struct Top<'f, 'a> {
    each: &'f mut dyn FnMut(Series<'a>),
    answer: Answer,
    status: Option<String>,
    kind: Option<String>,
    text: Option<String>,
    result: Option<String>,
}

impl<'de> Visitor<'de> for &mut Top<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer of Prometheus")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match key.as_ref() {
                "status" => self.status = Some(map.next_value()?),
                "errorType" => self.kind = Some(map.next_value()?),
                "error" => self.text = Some(map.next_value()?),
                "warnings" => {
                    let warnings: Option<Vec<String>> = map.next_value()?;
                    self.answer.warnings =
                        warnings.unwrap_or_default().into_iter().take(MAX_WARNINGS).collect();
                }
                "data" => map.next_value_seed(Data(self))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

struct Data<'t, 'f, 'a>(&'t mut Top<'f, 'a>);

impl<'de> DeserializeSeed<'de> for Data<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Data<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the data of an answer")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match key.as_ref() {
                "resultType" => self.0.result = Some(map.next_value()?),
                // A scalar is a list too, of numbers.
                "result" if matches!(self.0.result.as_deref(), Some("scalar" | "string")) => {
                    let _ = map.next_value::<IgnoredAny>()?;
                }
                "result" => map.next_value_seed(Results(self.0))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

struct Results<'t, 'f, 'a>(&'t mut Top<'f, 'a>);

impl<'de> DeserializeSeed<'de> for Results<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Results<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of series")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(Item { metric, value, values }) = list.next_element()? {
            let values: Vec<(f64, f64)> =
                value.into_iter().chain(values.unwrap_or_default().0).map(|Point(t, v)| (t, v)).collect();
            self.0.answer.series += 1;
            self.0.answer.at = self.0.answer.at.or(values.first().map(|(t, _)| *t));
            (self.0.each)(Series { labels: metric.0, values });
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow, default)]
    metric: Labels<'a>,
    value: Option<Point>,
    values: Option<Points>,
}

#[derive(Default)]
struct Labels<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

/// A text that is borrowed if it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Labels<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Labels<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("labels")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels<'de>, A::Error> {
                let mut labels = Vec::with_capacity(16);
                while let Some((Text(name), Text(value))) = map.next_entry::<Text<'de>, Text<'de>>()? {
                    if labels.len() < MAX_LABELS {
                        labels.push((name, value));
                    }
                }
                Ok(Labels(labels))
            }
        }
        json.deserialize_map(Each)
    }
}

/// A time and a value, which is a string: JSON has no NaN.
struct Point(f64, f64);

impl<'de> Deserialize<'de> for Point {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Point, D::Error> {
        let (time, value): (f64, Text<'de>) = Deserialize::deserialize(json)?;
        // One invalid value is unknown; the others are kept.
        Ok(Point(time, value.0.parse().unwrap_or(f64::NAN)))
    }
}

#[derive(Default)]
struct Points(Vec<Point>);

impl<'de> Deserialize<'de> for Points {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Points, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Points;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("values")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Points, A::Error> {
                let mut points = Vec::new();
                while let Some(point) = list.next_element::<Point>()? {
                    if points.len() < MAX_VALUES {
                        points.push(point);
                    }
                }
                Ok(Points(points))
            }
        }
        json.deserialize_seq(Each)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn series(body: &str) -> Result<(Answer, Vec<Series<'_>>), AnswerError> {
        let mut all = Vec::new();
        let answer = read(body.as_bytes(), &mut |one| all.push(one))?;
        Ok((answer, all))
    }

    #[test]
    fn vectors_and_matrices_are_read() {
        let vector = r#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"__name__":"a","gpu":"0","x":"es\u001bc"},"value":[1700000000.5,"1410"]},
            {"metric":{},"value":[1700000000.5,"NaN"]},{"metric":{"gpu":"1"},"value":[1,"+Inf"]}]},"warnings":["w"],"new":{"a":[1]}}"#;
        let (answer, all) = series(vector).unwrap();
        assert_eq!((answer.series, answer.at, answer.warnings.len()), (3, Some(1_700_000_000.5), 1));
        assert_eq!((all[0].name(), all[0].label("gpu"), all[0].last()), ("a", Some("0"), Some(1410.0)));
        assert_eq!(all[0].label("x"), Some("es\u{1b}c"));
        assert_eq!((all[1].last(), all[2].last(), all[1].name()), (None, None, ""));
        let matrix = r#"{"data":{"result":[{"metric":{"a":"b"},"values":[[1,"2"],[2,"-Inf"]]}],"resultType":"matrix"},"status":"success"}"#;
        let (_, all) = series(matrix).unwrap();
        assert_eq!(all[0].values, [(1.0, 2.0), (2.0, f64::NEG_INFINITY)]);
    }

    #[test]
    fn one_bad_value_loses_no_other() {
        let body = r#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"gpu":"0"},"value":[1,"n/a"]},{"metric":{"gpu":"1"},"value":[1,"1410"]}]}}"#;
        let (answer, all) = series(body).unwrap();
        assert_eq!((answer.series, all[0].last(), all[1].last()), (2, None, Some(1410.0)));
    }

    #[test]
    fn other_answers_are_refused() {
        let refused = |body| series(body).unwrap_err();
        let bad = r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#;
        assert_eq!(refused(bad).to_string(), "bad_data: parse error");
        let null = r#"{"status":"error","data":null,"error":"x"}"#;
        assert_eq!(refused(null).to_string(), "no reason given: x");
        let scalar = r#"{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}"#;
        assert_eq!(refused(scalar), AnswerError::Kind("scalar".into()));
        assert_eq!(refused("{}"), AnswerError::NoStatus);
        for text in [
            "",
            "<html>",
            "[]",
            r#"{"status":"success","data":{"result":[{"value":[1,2]}]}}"#,
            "{\"status\":",
        ] {
            assert!(matches!(refused(text), AnswerError::Json(_)), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes, &mut |_| {});
        }

        #[test]
        fn answers_round_trip(labels in prop::collection::btree_map("[a-zA-Z_]{1,8}", any::<String>(), 0..6), value: f64, time in 0u32..) {
            let body = serde_json::json!({"status": "success", "data": {"resultType": "vector", "result": [
                {"metric": labels, "value": [time, value.to_string()]}]}}).to_string();
            let (_, all) = series(&body).unwrap();
            let read: std::collections::BTreeMap<String, String> =
                all[0].labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            prop_assert_eq!(read, labels);
            let (t, v) = all[0].values[0];
            prop_assert_eq!(t, f64::from(time));
            prop_assert!(v == value || v.is_nan() && value.is_nan());
        }
    }
}
