#!/usr/bin/env bash
# Prints the folder that holds kube-apiserver, kube-controller-manager and etcd, and nothing else, on stdout:
#
#   KUBEBUILDER_ASSETS="$(tests/controlplane/build.sh)"
#   export KUBEBUILDER_ASSETS      # on a line of its own, or a failure of the build goes unnoticed
#
# Builds them first if no earlier run has. See README.md.
set -euo pipefail
exec 3>&1 >&2 # whatever a command below prints is progress; only the answer goes to 3

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
binaries=(kube-apiserver kube-controller-manager etcd)

say() { printf 'controlplane: %s\n' "$*"; }
die() { say "$*"; exit 1; }
complete() { local b; for b in "${binaries[@]}"; do [[ -f $1/$b && -x $1/$b ]] || return 1; done; }
answer() { printf '%s\n' "$1" >&3; exit 0; }

if [[ -n ${KUBEBUILDER_ASSETS:-} ]]; then
  complete "$KUBEBUILDER_ASSETS" && answer "$KUBEBUILDER_ASSETS"
  say "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS does not hold all of: ${binaries[*]}; using the cache instead"
fi

# What is built, and how: all of it goes into the key, with the go.mod and go.sum of both modules.
version="$(sed -nE 's/^require k8s\.io\/kubernetes (v[^ ]+).*/\1/p' "$here/kubernetes/go.mod")"
[[ $version =~ ^v([0-9]+)\.([0-9]+)\. ]] || die "no version of k8s.io/kubernetes in $here/kubernetes/go.mod"
ldflags="-s -w" # and the version, without which the binaries call themselves v0.0.0
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  ldflags+=" -X $package.gitVersion=$version -X $package.gitMajor=${BASH_REMATCH[1]} -X $package.gitMinor=${BASH_REMATCH[2]}"
  ldflags+=" -X $package.gitCommit= -X $package.gitTreeState=archive"
done
flags=(-mod=readonly -trimpath -buildvcs=false)
builds=( # module folder, package, binary, ldflags
  "kubernetes|k8s.io/kubernetes/cmd/kube-apiserver|kube-apiserver|$ldflags"
  "kubernetes|k8s.io/kubernetes/cmd/kube-controller-manager|kube-controller-manager|$ldflags"
  "etcd|go.etcd.io/etcd/server/v3|etcd|-s -w"
)

sha256() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi; }
key="$({
  cat "$here"/{kubernetes,etcd}/go.{mod,sum}
  printf '%s\n' CGO_ENABLED=0 "${flags[@]}" "${builds[@]}" "$(uname -sm)"
} | sha256 | cut -c1-16)"
cache="${XDG_CACHE_HOME:-${HOME:?set HOME or XDG_CACHE_HOME}/.cache}/sandlog/controlplane"
[[ $cache == /* ]] || die "XDG_CACHE_HOME=$XDG_CACHE_HOME is not an absolute path"
assets="$cache/$key"
complete "$assets" && answer "$assets"

# Go: at least what the modules ask for. Asked inside a module, so that a go that may fetch a newer one does.
need="$(sed -nE 's/^go ([0-9.]+)$/\1/p' "$here"/{kubernetes,etcd}/go.mod | sort -V | tail -n 1)"
remedy="Install Go $need or later and put it on PATH, or set KUBEBUILDER_ASSETS to a folder that holds ${binaries[*]}."
command -v go >/dev/null || die "go is not on PATH, and building the control plane needs it. $remedy"
unset GOOS GOARCH # for this machine
export CGO_ENABLED=0 GOWORK=off GOFLAGS=
have="$(cd "$here/kubernetes" && go env GOVERSION)" || die "go does not run. $remedy"
[[ $have =~ go([0-9.]+) ]] && have="${BASH_REMATCH[1]}"
[[ "$(printf '%s\n' "$need" "$have" | sort -V | head -n 1)" == "$need" ]] || die "go is $have, and building the control plane needs $need. $remedy"

# One at a time, where there is flock. Where there is none two runs may both build, which costs time and no more:
# each binary is renamed into place whole, and the folder is taken for built only when it has all three.
mkdir -p "$cache"
if command -v flock >/dev/null; then
  exec 9>"$cache/$key.lock"
  flock -n 9 || { say "another run is building $assets; waiting for it"; flock 9; }
  complete "$assets" && answer "$assets"
fi
temporary="$(mktemp -d "$cache/$key.building.XXXXXX")"
trap 'rm -rf "$temporary"' EXIT
trap 'exit 130' INT TERM HUP

say "building Kubernetes $version and etcd into $assets (some minutes, once)"
for build in "${builds[@]}"; do
  IFS='|' read -r module package binary ldflags <<<"$build"
  started=$SECONDS
  (cd "$here/$module" && go build "${flags[@]}" -ldflags "$ldflags" -o "$temporary/$binary" "$package" 3>&- 9>&-) \
    || die "building $binary failed"
  say "$binary in $((SECONDS - started)) s"
done
mkdir -p "$assets"
for binary in "${binaries[@]}"; do mv -f "$temporary/$binary" "$assets/$binary"; done
answer "$assets"
