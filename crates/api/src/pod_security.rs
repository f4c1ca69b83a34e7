//! What the Pod Security Standard *baseline* refuses, told per field.
//!
//! An App's author must gain nothing over creating Pods himself, so the operator creates no Pod that a namespace at
//! baseline would refuse, unless it runs with `--allow-privileged-templates`. The lists are those of
//! `k8s.io/pod-security-admission/policy` (checks at level baseline, Kubernetes 1.36). Called by
//! [`crate::parse`](mod@crate::parse) on the merged template and on the App's own probes.

use serde_json::Value;

use crate::structure::join;
use crate::violation::{FaultKind, Violation};

/// Capabilities that may be added (`check_capabilities_baseline.go`).
const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Sysctls that are confined to the Pod (`check_sysctls.go`).
const SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// SELinux types that may be set (`check_seLinuxOptions.go`).
const SELINUX_TYPES: [&str; 5] =
    ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

/// Faults of a Pod template (`{metadata, spec}`) that stands at `path`.
pub(crate) fn check_template(template: &Value, path: &str, out: &mut Vec<Violation>) {
    let annotations = template.pointer("/metadata/annotations").and_then(Value::as_object);
    for (key, value) in annotations.into_iter().flatten() {
        let allowed = ["runtime/default", ""].contains(&value.as_str().unwrap_or_default())
            || value.as_str().is_some_and(|v| v.starts_with("localhost/"));
        if key.starts_with("container.apparmor.security.beta.kubernetes.io/") && !allowed {
            refuse(out, format!("{path}.metadata.annotations.{key}"), "an unconfined AppArmor profile");
        }
    }
    let Some(spec) = template.get("spec") else { return };
    let path = join(path, "spec");
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if spec.get(field) == Some(&Value::Bool(true)) {
            refuse(out, join(&path, field), "a namespace of the host");
        }
    }
    check_security_context(spec, &path, out);
    for (index, volume) in list(spec, "volumes").enumerate() {
        if volume.get("hostPath").is_some_and(|v| !v.is_null()) {
            refuse(out, format!("{path}.volumes[{index}].hostPath"), "a path of the host");
        }
    }
    for (index, sysctl) in list_at(spec, "/securityContext/sysctls").enumerate() {
        if sysctl.get("name").and_then(Value::as_str).is_some_and(|name| !SYSCTLS.contains(&name)) {
            refuse(
                out,
                format!("{path}.securityContext.sysctls[{index}].name"),
                "a sysctl that reaches beyond the Pod",
            );
        }
    }
    for group in ["initContainers", "containers", "ephemeralContainers"] {
        for (index, container) in list(spec, group).enumerate() {
            check_container(container, &format!("{path}.{group}[{index}]"), out);
        }
    }
}

fn check_container(container: &Value, path: &str, out: &mut Vec<Violation>) {
    check_security_context(container, path, out);
    if let Some(context) = container.get("securityContext") {
        let path = join(path, "securityContext");
        if context.get("privileged") == Some(&Value::Bool(true)) {
            refuse(out, join(&path, "privileged"), "a privileged container");
        }
        if context.get("procMount").and_then(Value::as_str).is_some_and(|v| v != "Default") {
            refuse(out, join(&path, "procMount"), "an unmasked /proc");
        }
        for (index, capability) in list_at(context, "/capabilities/add").enumerate() {
            if capability.as_str().is_some_and(|name| !CAPABILITIES.contains(&name)) {
                refuse(out, format!("{path}.capabilities.add[{index}]"), "this capability");
            }
        }
    }
    for (index, port) in list(container, "ports").enumerate() {
        if port.get("hostPort").and_then(Value::as_i64).is_some_and(|port| port != 0) {
            refuse(out, format!("{path}.ports[{index}].hostPort"), "a port of the host");
        }
    }
    check_probes(container, path, out);
    for hook in ["postStart", "preStop"] {
        if let Some(handler) = container.pointer(&format!("/lifecycle/{hook}")) {
            check_handler(handler, &format!("{path}.lifecycle.{hook}"), out);
        }
    }
}

/// Faults of the probes of a container, or of the App's own ones: `holder` has `livenessProbe` and its like.
pub(crate) fn check_probes(holder: &Value, path: &str, out: &mut Vec<Violation>) {
    for probe in PROBES {
        if let Some(handler) = holder.get(probe) {
            check_handler(handler, &join(path, probe), out);
        }
    }
}

fn check_handler(handler: &Value, path: &str, out: &mut Vec<Violation>) {
    for kind in ["httpGet", "tcpSocket"] {
        if handler
            .pointer(&format!("/{kind}/host"))
            .and_then(Value::as_str)
            .is_some_and(|host| !host.is_empty())
        {
            refuse(out, format!("{path}.{kind}.host"), "a probe of another host than the Pod");
        }
    }
}

/// What a Pod's and a container's security context share.
fn check_security_context(holder: &Value, path: &str, out: &mut Vec<Violation>) {
    let Some(context) = holder.get("securityContext") else {
        return;
    };
    let path = join(path, "securityContext");
    for profile in ["seccompProfile", "appArmorProfile"] {
        if context.pointer(&format!("/{profile}/type")).and_then(Value::as_str) == Some("Unconfined") {
            refuse(out, format!("{path}.{profile}.type"), "an unconfined profile");
        }
    }
    if context.pointer("/windowsOptions/hostProcess") == Some(&Value::Bool(true)) {
        refuse(out, format!("{path}.windowsOptions.hostProcess"), "a process of the host");
    }
    if let Some(options) = context.get("seLinuxOptions") {
        if options.get("type").and_then(Value::as_str).is_some_and(|t| !SELINUX_TYPES.contains(&t)) {
            refuse(out, format!("{path}.seLinuxOptions.type"), "this SELinux type");
        }
        for field in ["user", "role"] {
            if options.get(field).and_then(Value::as_str).is_some_and(|v| !v.is_empty()) {
                refuse(out, format!("{path}.seLinuxOptions.{field}"), "an SELinux user or role");
            }
        }
    }
}

fn refuse(out: &mut Vec<Violation>, path: String, what: &str) {
    out.push(Violation::new(
        path,
        FaultKind::Forbidden,
        format!("{what} is beyond the Pod Security Standard \"baseline\"; remove it, or ask the administrator of the operator for --allow-privileged-templates"),
    ));
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

fn list_at<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paths(template: &Value) -> Vec<String> {
        let mut out = Vec::new();
        check_template(template, "t", &mut out);
        out.into_iter().map(|violation| violation.path).collect()
    }

    #[test]
    fn each_control_of_the_baseline_is_refused_at_its_field() {
        let container = |fields: Value| json!({"spec": {"containers": [fields]}});
        let context = |fields: Value| json!({"spec": {"containers": [{"securityContext": fields}]}});
        let table = [
            (json!({"spec": {"hostNetwork": true}}), "t.spec.hostNetwork"),
            (json!({"spec": {"hostPID": true}}), "t.spec.hostPID"),
            (json!({"spec": {"hostIPC": true}}), "t.spec.hostIPC"),
            (
                json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}),
                "t.spec.volumes[0].hostPath",
            ),
            (
                json!({"spec": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}}),
                "t.spec.securityContext.sysctls[0].name",
            ),
            (
                json!({"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}),
                "t.spec.securityContext.seccompProfile.type",
            ),
            (
                json!({"spec": {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}}),
                "t.spec.securityContext.appArmorProfile.type",
            ),
            (
                json!({"spec": {"securityContext": {"windowsOptions": {"hostProcess": true}}}}),
                "t.spec.securityContext.windowsOptions.hostProcess",
            ),
            (
                json!({"spec": {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}}),
                "t.spec.securityContext.seLinuxOptions.type",
            ),
            (
                json!({"spec": {"securityContext": {"seLinuxOptions": {"user": "u"}}}}),
                "t.spec.securityContext.seLinuxOptions.user",
            ),
            (
                json!({"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/app": "unconfined"}}}),
                "t.metadata.annotations.container.apparmor.security.beta.kubernetes.io/app",
            ),
            (context(json!({"privileged": true})), "t.spec.containers[0].securityContext.privileged"),
            (context(json!({"procMount": "Unmasked"})), "t.spec.containers[0].securityContext.procMount"),
            (
                context(json!({"capabilities": {"add": ["CHOWN", "SYS_ADMIN"]}})),
                "t.spec.containers[0].securityContext.capabilities.add[1]",
            ),
            (
                context(json!({"seLinuxOptions": {"role": "r"}})),
                "t.spec.containers[0].securityContext.seLinuxOptions.role",
            ),
            (
                container(json!({"ports": [{"containerPort": 1, "hostPort": 80}]})),
                "t.spec.containers[0].ports[0].hostPort",
            ),
            (
                container(json!({"livenessProbe": {"httpGet": {"host": "10.0.0.1"}}})),
                "t.spec.containers[0].livenessProbe.httpGet.host",
            ),
            (
                container(json!({"lifecycle": {"preStop": {"tcpSocket": {"host": "10.0.0.1"}}}})),
                "t.spec.containers[0].lifecycle.preStop.tcpSocket.host",
            ),
            (
                json!({"spec": {"initContainers": [{"securityContext": {"privileged": true}}]}}),
                "t.spec.initContainers[0].securityContext.privileged",
            ),
        ];
        for (template, path) in table {
            assert_eq!(paths(&template), [path], "{template}");
        }
    }

    #[test]
    fn what_the_baseline_allows_passes() {
        let fine = json!({
            "metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/app": "runtime/default"}},
            "spec": {
                "hostNetwork": false,
                "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}, "sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]},
                "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{
                    "ports": [{"containerPort": 80, "hostPort": 0}],
                    "securityContext": {"privileged": false, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}, "seLinuxOptions": {"type": "container_t", "level": "s0"}},
                    "livenessProbe": {"httpGet": {"path": "/", "port": 80}},
                }],
            },
        });
        assert!(paths(&fine).is_empty(), "{:?}", paths(&fine));
    }
}
