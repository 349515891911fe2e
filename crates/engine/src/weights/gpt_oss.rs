//! The experts of gpt-oss in safetensors: those of a layer are one tensor, with rows of gate and up in turn;
//! in four bits (MXFP4), or unquantised, by column.

use candle_core::DType;
use decoder_ops::Format;

use super::{QuantisedRows, WeightError, dequantised, packed::Stored};
use llm_cost::spec::TensorShape;

/// Weights of a block.
const BLOCK: usize = 32;

/// The location of one expert's tensor: in the tensors of all experts whose names begin with `stored`.
pub(super) struct ExpertSlice {
    stored: String,
    expert: usize,
    is_bias: bool,
    /// Its first row, and the rows from one to the next.
    first: usize,
    step: usize,
}

/// A tensor of one expert.
pub(super) struct OfExpert<'a> {
    slice: ExpertSlice,
    rows: usize,
    columns: usize,
    values: Values<'a>,
}

enum Values<'a> {
    /// (experts, rows) of a bias, (experts, columns, rows) of a matrix.
    Plain(Stored<'a>),
    /// (experts, rows, blocks, 16), two weights to a byte; and an exponent for each block.
    Blocks { codes: Stored<'a>, exponents: Stored<'a> },
}

impl ExpertSlice {
    pub fn from_name(name: &str) -> Option<ExpertSlice> {
        let (before, rest) = name.split_once(".mlp.experts.")?;
        let mut parts = rest.split('.');
        let expert = parts.next()?.parse().ok()?;
        let (matrix, first, step) = match parts.next()? {
            "gate_proj" => ("gate_up_proj", 0, 2),
            "up_proj" => ("gate_up_proj", 1, 2),
            "down_proj" => ("down_proj", 0, 1),
            _ => return None,
        };
        let is_bias = parts.next()? == "bias";
        Some(ExpertSlice { stored: format!("{before}.mlp.experts.{matrix}"), expert, is_bias, first, step })
    }

    pub fn bias(&self) -> String {
        format!("{}_bias", self.stored)
    }

    /// The names under which a file may have it.
    pub fn names(&self) -> Vec<String> {
        match self.is_bias {
            true => vec![self.bias()],
            false => vec![format!("{}_blocks", self.stored), self.stored.clone()],
        }
    }
}

impl<'a> OfExpert<'a> {
    /// `None` if the shapes or types do not match.
    pub fn new(
        slice: ExpertSlice,
        tensor: &TensorShape,
        stored: impl Fn(&str) -> Option<Stored<'a>>,
    ) -> Option<OfExpert<'a>> {
        let (rows, columns) = match *tensor.shape.as_slice() {
            [rows] => (rows, 1),
            [rows, columns] => (rows, columns),
            _ => return None,
        };
        let all_rows = rows * slice.step;
        let codes = if slice.is_bias { None } else { stored(&format!("{}_blocks", slice.stored)) };
        let (values, experts) = match codes {
            Some(codes) => {
                let exponents = stored(&format!("{}_scales", slice.stored))?;
                let experts = *codes.shape.first()?;
                let blocks = columns / BLOCK;
                let fits = columns.is_multiple_of(BLOCK)
                    && codes.shape == [experts, all_rows, blocks, BLOCK / 2]
                    && exponents.shape == [experts, all_rows, blocks]
                    && codes.is_bytes()
                    && exponents.is_bytes();
                if !fits {
                    return None;
                }
                (Values::Blocks { codes, exponents }, experts)
            }
            None => {
                let plain = stored(&slice.names().pop()?)?;
                let experts = *plain.shape.first()?;
                let fits = match slice.is_bias {
                    true => plain.shape == [experts, all_rows],
                    false => plain.shape == [experts, columns, all_rows],
                };
                if !fits || !plain.is_plain() {
                    return None;
                }
                (Values::Plain(plain), experts)
            }
        };
        (slice.expert < experts).then_some(OfExpert { slice, rows, columns, values })
    }

    /// The type of its blocks; `None` if it is unquantised.
    pub fn format(&self) -> Option<Format> {
        matches!(self.values, Values::Blocks { .. }).then_some(Format::Mxfp4)
    }

    /// The row of all experts' rows that is row `row` of the tensor.
    fn row(&self, row: usize) -> usize {
        self.slice.expert * self.rows * self.slice.step + self.slice.first + row * self.slice.step
    }

    /// As blocks of a GGUF file: the same codes, of which a byte has one from each half of the block instead of two neighbours.
    pub fn blocks(&self) -> Option<QuantisedRows> {
        let Values::Blocks { codes, exponents } = &self.values else { return None };
        let (blocks, half) = (self.columns / BLOCK, BLOCK / 2);
        let mut bytes = Vec::with_capacity(self.rows * blocks * Format::Mxfp4.bytes());
        for block in (0..self.rows).flat_map(|row| (0..blocks).map(move |at| self.row(row) * blocks + at)) {
            let codes = &codes.data[block * half..][..half];
            let code = |i: usize| (codes[i / 2] >> (4 * (i % 2))) & 15;
            bytes.push(exponents.data[block]);
            bytes.extend((0..half).map(|i| code(i) | code(i + half) << 4));
        }
        Some(QuantisedRows { format: Format::Mxfp4, bytes, rows: self.rows })
    }

    /// Dequantised, in rows.
    pub fn values(&self) -> Result<Vec<f32>, WeightError> {
        if let Some(QuantisedRows { format, bytes, .. }) = self.blocks() {
            return dequantised(format, &bytes, self.columns);
        }
        let Values::Plain(plain) = &self.values else { return Ok(Vec::new()) };
        let ExpertSlice { expert, first, step, .. } = self.slice;
        let width = self.rows * step;
        // The numbers of the expert, column by column.
        let own = expert * width * self.columns..(expert + 1) * width * self.columns;
        let own = plain.numbers(own).unwrap_or_default();
        let rows = (0..self.rows).map(|row| first + row * step);
        Ok(rows
            .flat_map(|row| (0..self.columns).map(move |column| (row, column)))
            .map(|(row, column)| own[column * width + row])
            .collect())
    }
}

impl Stored<'_> {
    fn is_bytes(&self) -> bool {
        self.dtype == Some(DType::U8) && self.holds(1)
    }

    fn is_plain(&self) -> bool {
        self.plain().is_some_and(|dtype| self.holds(dtype.bytes() as usize))
    }
}
