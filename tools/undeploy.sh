#!/usr/bin/env bash
# Removes KubeSentry from a cluster: all Apps while the operator runs, then the CRD, then everything else.
#
# The order is the point. An App has a finalizer that only an operator removes, once the App's audit records are saved. With
# the operator gone first, Apps and CRD would stay Terminating for ever. Where no operator does its part within the time
# given, the finalizer is removed here, as the last resort, and records that weren't exported go with the App.
#
# The garbage collector has to be waited for as well: once the CRD is gone it can't look an owner up any more, and a
# Deployment that it hadn't got to yet would run for ever.
#
# May be run again after a failure, and finishes what a deletion in the wrong order left. Called by `make undeploy` and `make uninstall`.
set -euo pipefail

usage() {
  cat >&2 <<'U'
usage: undeploy.sh --kubeconfig FILE [--config FOLDER] [--wait SECONDS] [--save-audit FILE] [--keep-pods]

  --kubeconfig FILE   the cluster; there is no default
  --config FOLDER     the kustomization that was installed; without it the operator and its namespace stay
  --wait SECONDS      how long the operator may take for the Apps (180: an export is tried for 120)
  --save-audit FILE   write the audit records to a file before the namespace that holds them goes
  --keep-pods         leave the Apps' Deployments running, without an owner
U
  exit 2
}

say() { printf 'undeploy: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

kubeconfig='' config='' patience=180 audit='' cascade=background
while [ $# -gt 0 ]; do
  case $1 in
    --keep-pods) cascade=orphan; shift; continue ;;
    --kubeconfig | --config | --wait | --save-audit) [ $# -ge 2 ] && [ -n "$2" ] || usage ;;
    *) usage ;;
  esac
  case $1 in
    --kubeconfig) kubeconfig=$2 ;;
    --config) config=$2 ;;
    --wait) patience=$2 ;;
    --save-audit) audit=$2 ;;
  esac
  shift 2
done
[ -n "$kubeconfig" ] || usage
[[ $patience =~ ^[0-9]+$ ]] || usage

CRD=apps.apps.sentry.io
FINALIZER=apps.sentry.io/audit-export

# Unquoted on purpose: KUBECTL may be a program with arguments, such as `sentry-lab kubectl --`.
k() { ${KUBECTL:-kubectl} --kubeconfig="$kubeconfig" "$@"; }

crd_there() {
  local found
  found=$(k get customresourcedefinitions "$CRD" --ignore-not-found -o name) || die "the cluster can't be asked"
  [ -n "$found" ]
}

# Every App, one per line: namespace|name|finalizers|time of deletion. Nothing once the CRD is gone.
apps() {
  local lines
  if lines=$(k get "$CRD" --all-namespaces -o jsonpath='{range .items[*]}{.metadata.namespace}|{.metadata.name}|{.metadata.finalizers}|{.metadata.deletionTimestamp}{"\n"}{end}'); then
    printf '%s' "$lines"
  elif crd_there; then
    die "the Apps can't be listed"
  fi
}

# Waits until no App is left; fails when the time is over.
wait_for_apps() {
  local end=$((SECONDS + $1)) left
  while true; do
    left=$(apps) || exit 1
    [ -n "$left" ] || return 0
    [ $SECONDS -lt $end ] || return 1
    sleep 1
  done
}

# Removes our finalizer, and only ours, from every App that is being deleted.
strip() {
  local left namespace name finalizers deleted position item
  left=$(apps) || exit 1
  while IFS='|' read -r namespace name finalizers deleted; do
    [ -n "$deleted" ] || continue
    position=0
    for item in $(tr -d '[]"' <<<"$finalizers" | tr ',' ' '); do
      if [ "$item" = "$FINALIZER" ]; then
        say "no operator has released App $namespace/$name: removing its finalizer; records not exported yet are lost"
        # The test keeps a list that changed meanwhile from losing another finalizer. An App that is gone is what we want.
        k -n "$namespace" patch "$CRD" "$name" --type=json -p "[
          {\"op\": \"test\", \"path\": \"/metadata/finalizers/$position\", \"value\": \"$FINALIZER\"},
          {\"op\": \"remove\", \"path\": \"/metadata/finalizers/$position\"}]" >&2 </dev/null || true
        break
      fi
      position=$((position + 1))
    done
  done <<<"$left"
}

remove_apps() {
  local left
  left=$(apps) || exit 1
  [ -n "$left" ] || return 0
  say "deleting $(grep -c . <<<"$left") Apps; the operator has $patience s"
  k delete "$CRD" --all --all-namespaces --wait=false --cascade="$cascade" >&2
  wait_for_apps "$patience" && return 0
  strip
  # The garbage collector may have to orphan or delete Pods first.
  wait_for_apps $((patience < 25 ? patience + 5 : 30)) && return 0
  apps >&2
  die "these Apps are still there (namespace|name|finalizers): see to the finalizers of others, and run this again"
}

# Deployments whose owner is an App, one per line: namespace/name.
owned() {
  k get deployments --all-namespaces -l apps.sentry.io/app \
    -o jsonpath='{range .items[*]}{.metadata.namespace}/{.metadata.name} {.metadata.ownerReferences[*].apiVersion}{"\n"}{end}' |
    awk '$0 ~ " apps[.]sentry[.]io/" { print $1 }'
}

wait_for_the_collector() {
  # It learns of a new kind within 30 s, and its retries come at growing intervals.
  local end=$((SECONDS + 180)) left
  while true; do
    left=$(owned) || die "the Deployments can't be listed"
    [ -n "$left" ] || return 0
    [ $SECONDS -lt $end ] || break
    sleep 1
  done
  printf '%s\n' "$left" >&2
  die "the garbage collector hasn't removed these Deployments of deleted Apps: delete them, and run this again"
}

k version >/dev/null || die "the cluster doesn't answer"

if crd_there; then
  say "1. Apps"
  remove_apps
  wait_for_the_collector
fi

if [ -n "$audit" ]; then
  k --namespace=kubesentry-system get configmaps -l apps.sentry.io/audit=true -o yaml >"$audit"
  say "the audit records are in $audit"
fi

say "2. the CRD"
k delete customresourcedefinitions "$CRD" --ignore-not-found --wait=false >&2
tries=0
while crd_there; do
  tries=$((tries + 1))
  # An App that somebody made in between goes with the CRD, if its finalizer does.
  if [ $((tries % 20)) = 0 ]; then strip; fi
  [ $tries -lt 60 ] || die "the CRD is still there after 60 s: see its conditions"
  sleep 1
done

[ -n "$config" ] || exit 0

say "3. the operator, its roles and its namespace"
k delete --ignore-not-found -k "$config" >&2
say "done"
