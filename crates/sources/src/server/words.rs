//! Synthetic prompts: common words, each of which is one token in most vocabularies.

use llmprof_base::noise;

const WORDS: &str = "time year people way day man thing woman life child world school state family student group country problem hand part \
place case week company system program question work government number night point home water room mother area money story fact month lot right \
study book eye job word business issue side kind head house service friend father power hour game line end member law car city community name \
president team minute idea body information back parent face others level office door health person art war history party result change \
morning reason research girl guy moment air teacher force education";

/// `count` words, determined by the seed.
pub fn words(seed: u64, count: usize) -> String {
    let all: Vec<&str> = WORDS.split_whitespace().collect();
    let mut text = String::with_capacity(count * 7);
    for i in 0..count {
        if i > 0 {
            text.push(' ');
        }
        text.push_str(all[(noise::bits(seed, i as u64) % all.len() as u64) as usize]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_their_length_and_differ_by_seed() {
        assert_eq!(words(1, 50).split(' ').count(), 50);
        assert_eq!(words(1, 50), words(1, 50));
        assert_ne!(words(1, 50), words(2, 50));
        assert!(words(1, 60).starts_with(&words(1, 50)), "a longer text of a seed begins with the shorter");
        assert_eq!(words(1, 0), "");
    }
}
