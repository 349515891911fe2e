#!/usr/bin/env bash
# Makes the release: an archive and a Debian package with the binary, the manual page, completions, the licence and the README.
#
#   dist/make.sh        writes target/dist/llmprof-tui-VERSION-x86_64-linux.tar.gz and llmprof-tui_VERSION_amd64.deb
#
# zig links the binary against the symbols of glibc 2.28 (Debian 10, RHEL 8, Ubuntu 18.10 and later), whichever glibc this
# machine has. The script checks that in the binary itself, and that the archive is small.
set -euo pipefail
cd "$(dirname "$0")/.."

GLIBC=2.28
MAX_ARCHIVE_MB=30
TRIPLE=x86_64-unknown-linux-gnu

report() { echo "dist: $*" >&2; }
fail() { report "$*"; exit 1; }
for tool in git python3 cc objdump strip dpkg-deb gzip man; do
    command -v "$tool" >/dev/null || fail "$tool is missing (Debian: apt install git python3-venv gcc binutils dpkg gzip man-db)"
done
[ "$(uname -m)" = x86_64 ] || fail "this recipe runs the binary that it makes, so it needs an x86_64 machine"

# Between releases, the committed kernels may be older than their sources.
third_party/cuda/kernels.py --check

tools=$(dist/tools.sh)
eval "$tools"
target=${CARGO_TARGET_DIR:-target}
export CARGO_TARGET_DIR=$target
version=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' Cargo.toml)
commit_time=$(git log -1 --format=%ct)
maintainer=${DEBFULLNAME:+$DEBFULLNAME <$DEBEMAIL>}
maintainer=${maintainer:-$(git log -1 --format='%an <%ae>')}

cargo zigbuild --release --locked --target "$TRIPLE.$GLIBC"

out=$target/dist
name=llmprof-tui-$version-x86_64-linux
rm -rf "$out"
mkdir -p "$out/$name"
program=$out/$name/llmprof-tui
cp "$target/$TRIPLE/release/llmprof-tui" "$program"
strip "$program"

# The newest glibc symbol version that a file requires; checked for the binary and for the injection library in it.
check_glibc() {
    local newest
    newest=$(objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -1)
    [ -n "$newest" ] || fail "$1 asks for no symbol of glibc"
    [ "$(printf '%s\n' "$newest" "$GLIBC" | sort -V | tail -1)" = "$GLIBC" ] \
        || fail "$1 needs glibc $newest, which is newer than $GLIBC"
}
check_glibc "$program"
check_glibc "$(ls -t "$target/$TRIPLE/release/build/"llmprof-inject-*/out/libllmprof_inject.so | head -1)"
# The libraries that the binary requires.
libraries=$(objdump -p "$program" | sed -n 's/^ *NEEDED *//p' | sort | tr '\n' ' ')
for library in $libraries; do
    case $library in
        libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1 | libutil.so.1 | ld-linux-x86-64.so.2) ;;
        *) fail "the binary needs $library, which is not a part of glibc" ;;
    esac
done
report "needs glibc $newest or later; libraries: $libraries"

"$program" --version >/dev/null || fail "the binary does not start"
for shell in bash zsh fish; do
    "$program" completion "$shell" > "$out/$name/llmprof-tui.$shell"
done
cp dist/llmprof-tui.1 LICENSE README.md CHANGELOG.md "$out/$name"
warnings=$(man --warnings -l -E UTF-8 -Tutf8 "$out/$name/llmprof-tui.1" 2>&1 >/dev/null || true)
[ -z "$warnings" ] || fail "the manual page: $warnings"

# The archive contains neither the time nor the user of the build.
packed=(--sort=name --mtime="@$commit_time" --owner=0 --group=0 --numeric-owner)
tar "${packed[@]}" -C "$out" -cf - "$name" | gzip -9n > "$out/$name.tar.gz"
size=$(stat -c %s "$out/$name.tar.gz")
[ "$size" -le $((MAX_ARCHIVE_MB * 1000000)) ] || fail "the archive has $size bytes, more than $MAX_ARCHIVE_MB MB"
report "$out/$name.tar.gz: $((size / 1000000)).$((size / 100000 % 10)) MB"

# The Debian package: the same files in Debian's places.
root=$out/deb
install -D -m 755 "$program" "$root/usr/bin/llmprof-tui"
install -D -m 644 "$out/$name/llmprof-tui.1" "$root/usr/share/man/man1/llmprof-tui.1"
install -D -m 644 "$out/$name/llmprof-tui.bash" "$root/usr/share/bash-completion/completions/llmprof-tui"
install -D -m 644 "$out/$name/llmprof-tui.zsh" "$root/usr/share/zsh/vendor-completions/_llmprof-tui"
install -D -m 644 "$out/$name/llmprof-tui.fish" "$root/usr/share/fish/vendor_completions.d/llmprof-tui.fish"
doc=$root/usr/share/doc/llmprof-tui
install -D -m 644 README.md "$doc/README.md"
install -D -m 644 CHANGELOG.md "$doc/changelog"
{
    echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
    echo "Upstream-Name: llmprof-tui"
    echo
    echo "Files: *"
    echo "Copyright: $(sed -n 's/^Copyright (c) //p' LICENSE)"
    echo "License: Expat"
    sed '1,/^Copyright/d; s/^$/./; s/^/ /' LICENSE | sed '1{/^ \.$/d}'
} > "$doc/copyright"
gzip -9n "$root/usr/share/man/man1/llmprof-tui.1" "$doc/changelog"
mkdir -p "$root/DEBIAN"
cat > "$root/DEBIAN/control" <<CONTROL
Package: llmprof-tui
Version: $version
Architecture: amd64
Maintainer: $maintainer
Section: utils
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: libc6 (>= $GLIBC)
Description: live profiler for LLM inference in the terminal
 Runs a language model on an NVIDIA GPU or on the CPU, shows what the GPU, the
 tokens and the kernels do while it happens, and says what limits the speed.
 .
 The NVIDIA driver, cuBLAS and CUPTI are opened where they are found; none of
 them is needed to install the package.
CONTROL
find "$root" -type d -exec chmod 755 {} +
package=$out/llmprof-tui_${version}_amd64.deb
SOURCE_DATE_EPOCH=$commit_time dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null
rm -r "$root"
report "$package: $(du -h --apparent-size "$package" | cut -f1)"
