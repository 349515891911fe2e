//! Rebuilds when a file comes or goes under `conf/`: embedding tracks only the files it has seen.

fn main() {
    println!("cargo:rerun-if-changed=conf");
}
