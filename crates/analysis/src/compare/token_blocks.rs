//! The times of consecutive tokens in blocks, for comparisons of few requests. Memory is bounded.

use serde::{Deserialize, Serialize};

/// Initial number of tokens of a block.
const FIRST_STEPS: u32 = 16;
/// At this many blocks, neighbours are merged.
const MAX_BLOCKS: usize = 256;

/// Consecutive tokens of one request, or of neighbouring ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TokenBlock {
    pub ns: u64,
    pub steps: u32,
}

/// Blocks in order of time. Tokens of a request are correlated over a short time; blocks much less so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<TokenBlock>", into = "Vec<TokenBlock>")]
pub struct TokenBlocks {
    blocks: Vec<TokenBlock>,
    open: TokenBlock,
    steps_per_block: u32,
}

impl Default for TokenBlocks {
    fn default() -> TokenBlocks {
        TokenBlocks { blocks: Vec::new(), open: TokenBlock::default(), steps_per_block: FIRST_STEPS }
    }
}

impl From<Vec<TokenBlock>> for TokenBlocks {
    fn from(blocks: Vec<TokenBlock>) -> TokenBlocks {
        TokenBlocks { blocks, ..TokenBlocks::default() }
    }
}

impl From<TokenBlocks> for Vec<TokenBlock> {
    fn from(blocks: TokenBlocks) -> Vec<TokenBlock> {
        blocks.blocks
    }
}

impl TokenBlocks {
    /// A token, `gap_ns` after the previous one of its request.
    pub fn token(&mut self, gap_ns: u64) {
        self.open.ns += gap_ns;
        self.open.steps += 1;
        if self.open.steps >= self.steps_per_block {
            self.close();
        }
    }

    /// The request has ended: its last tokens form a block.
    pub fn close(&mut self) {
        let block = std::mem::take(&mut self.open);
        if block.steps == 0 {
            return;
        }
        self.blocks.push(block);
        if self.blocks.len() >= MAX_BLOCKS {
            let merged = |pair: &[TokenBlock]| {
                pair.iter().fold(TokenBlock::default(), |sum, block| TokenBlock {
                    ns: sum.ns + block.ns,
                    steps: sum.steps + block.steps,
                })
            };
            self.blocks = self.blocks.chunks(2).map(merged).collect();
            self.steps_per_block = self.steps_per_block.saturating_mul(2);
        }
    }

    /// Complete blocks.
    pub fn blocks(&self) -> &[TokenBlock] {
        &self.blocks
    }

    /// The number of tokens in all complete blocks.
    pub fn steps(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.steps)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_end_with_their_request_and_memory_is_bounded() {
        let mut blocks = TokenBlocks::default();
        (0..20).for_each(|_| blocks.token(10));
        blocks.close();
        assert_eq!(blocks.blocks(), [TokenBlock { ns: 160, steps: 16 }, TokenBlock { ns: 40, steps: 4 }]);
        (0..100_000).for_each(|_| blocks.token(10));
        blocks.close();
        assert!((MAX_BLOCKS / 4..MAX_BLOCKS).contains(&blocks.blocks().len()), "{}", blocks.blocks().len());
        assert_eq!(blocks.steps(), 100_020);
        let text = serde_json::to_string(&blocks).unwrap();
        let read: TokenBlocks = serde_json::from_str(&text).unwrap();
        assert_eq!(read.blocks(), blocks.blocks());
    }
}
