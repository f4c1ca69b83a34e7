//! The operator as it is in its image: a static program in an empty folder, run as user 65532, that finds its cluster by a
//! name in DNS.
//!
//! Looking names up is where a static program of glibc fails late, and only in an empty image: an old glibc loads shared
//! objects for it. So a DNS server of this test's own answers names that no other one knows, as a cluster's would. Root is
//! needed for `chroot` and for port 53; `make check-static` builds the program and runs this.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubesentry_lab::operator::{self, NAMESPACE, USER};
use kubesentry_lab::{Child, ChildSpec, Held, Lab, hold};

/// The user of the image.
const UID: &str = "65532";
/// A loopback address that no resolver of this machine listens on; resolv.conf has no place for a port.
const DNS: &str = "127.0.0.153";
/// A name that only this test's DNS server knows.
const INVENTED: &str = "kube-api.lab.test";
/// The name of the API server in a cluster; it stands in the certificate of the lab's.
const IN_CLUSTER: &str = "kubernetes.default.svc";
/// Where a Pod finds its ServiceAccount (Kubernetes documentation, "Accessing the Kubernetes API from a Pod").
const SERVICE_ACCOUNT: &str = "var/run/secrets/kubernetes.io/serviceaccount";

/// How often each name was asked for.
type Asked = Arc<Mutex<BTreeMap<String, usize>>>;

/// Serves DNS until the process ends.
fn serve_dns() -> Asked {
    let socket = UdpSocket::bind((DNS, 53)).expect("port 53, which needs root");
    let asked = Asked::default();
    let counted = asked.clone();
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut query) {
            if let Some((name, answer)) = query.get(..length).and_then(answer) {
                *counted.lock().expect("a lock").entry(name).or_default() += 1;
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    asked
}

/// The name asked for, and the answer: 127.0.0.1 for the names known here, no address of another kind for them, and "no
/// such name" for all others (RFC 1035, section 4).
fn answer(query: &[u8]) -> Option<(String, Vec<u8>)> {
    const A: [u8; 2] = [0, 1];
    let mut labels = Vec::new();
    let mut at = 12;
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(query.get(at..at + length)?).into_owned());
        at += length;
    }
    let name = labels.join(".");
    let known = [INVENTED, IN_CLUSTER].contains(&name.as_str());
    let found = known && query.get(at..at + 2)? == A;
    let mut answer = query.get(..2)?.to_vec();
    answer.extend([0x81, if known { 0x80 } else { 0x83 }]);
    answer.extend([0, 1, 0, u8::from(found), 0, 0, 0, 0]);
    answer.extend(query.get(12..at + 4)?);
    if found {
        // The name again, by reference; type A, class IN, 5 s to live, four bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 127, 0, 0, 1]);
    }
    Some((name, answer))
}

/// A file for the image's user to read.
fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    std::fs::write(path, text).expect("a file");
}

/// A folder with the program, and what a kubelet puts beside it.
fn image(lab: &Lab, program: &Path) -> PathBuf {
    let root = lab.dir().join(format!("image-{}", std::process::id()));
    write(&root.join("etc/hosts"), "127.0.0.1 localhost\n");
    let resolver = format!(
        "search {NAMESPACE}.svc.cluster.local svc.cluster.local cluster.local\nnameserver {DNS}\noptions ndots:5\n"
    );
    write(&root.join("etc/resolv.conf"), &resolver);
    std::fs::copy(program, root.join("kubesentry")).expect("the program");
    std::fs::set_permissions(root.join("kubesentry"), PermissionsExt::from_mode(0o755)).expect("a mode");
    root
}

/// Starts the program in the folder, waits until it is ready, and stops it.
async fn becomes_ready(lab: &Lab, root: &Path, name: &str, args: &[&str], env: &[(&str, &str)]) {
    let ports: Vec<u16> = hold(2).expect("ports").into_iter().map(Held::release).collect();
    let &[health, metrics] = ports.as_slice() else { panic!("two ports") };
    let mut spec = ChildSpec::new("chroot", lab.dir().join(format!("{name}.log")))
        .args([format!("--userspec={UID}:{UID}"), "--groups=".to_owned()])
        .args([root])
        .args(["/kubesentry", "run"])
        .args([
            format!("--health-address=127.0.0.1:{health}"),
            format!("--metrics-address=127.0.0.1:{metrics}"),
        ])
        .args(args);
    spec.clean_env = true;
    for (variable, value) in env {
        spec = spec.env(variable, value);
    }
    let mut child = Child::spawn(spec).expect("a process");
    let mut seen = String::new();
    let log = child.log().to_owned();
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    for _ in 0..1500 {
        seen = get(health, "/readyz").unwrap_or_else(|error| error.to_string());
        if seen.contains(" 200 ") {
            break;
        }
        assert!(child.try_wait().is_none(), "{name}: it ended: {}", said());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(seen.contains(" 200 "), "{name}: not ready in 30 s: {seen}\n{}", said());

    let process = PathBuf::from(format!("/proc/{}", child.pid()));
    let status = std::fs::read_to_string(process.join("status")).expect("a process");
    for ids in ["Uid", "Gid"] {
        assert!(status.contains(&format!("{ids}:\t{UID}\t{UID}\t{UID}\t{UID}\n")), "{name}: {status}");
    }
    assert_eq!(std::fs::read_link(process.join("root")).expect("its root"), root);
    let mapped = std::fs::read_to_string(process.join("maps")).expect("its memory");
    assert!(!mapped.contains(".so"), "{name}: it loaded a shared object: {mapped}");
    let status = child.terminate(Duration::from_secs(20)).await;
    assert!(status.success(), "{name}: {status}: {}", said());
}

fn get(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// What kubectl prints.
fn kubectl(lab: &Lab, args: &[&str]) -> String {
    let output = lab.kubectl().args(args).output().expect("kubectl");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test]
#[ignore = "needs root and a static build: make check-static"]
async fn in_an_empty_image_it_finds_the_cluster_by_name_and_becomes_ready() {
    let program = PathBuf::from(
        std::env::var_os("KUBESENTRY_STATIC").expect("KUBESENTRY_STATIC, by make check-static"),
    );
    let linked = Command::new("ldd").arg(&program).output().expect("ldd");
    let linked =
        String::from_utf8_lossy(&linked.stdout).into_owned() + &String::from_utf8_lossy(&linked.stderr);
    assert!(linked.contains("statically linked") || linked.contains("not a dynamic executable"), "{linked}");

    let lab = Lab::shared().await.expect("a control plane");
    operator::install(&lab).await.expect("CRD and roles");
    let asked = serve_dns();
    let root = image(&lab, &program);
    let port = lab.api_url().rsplit_once(':').expect("a port").1;
    let count = |name: &str| asked.lock().expect("a lock").get(name).copied().unwrap_or_default();

    // By a kubeconfig. The certificate knows nothing of the invented name.
    let file = lab.kubeconfig_for(USER, &[]).expect("a kubeconfig");
    let mut config: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(file).expect("a file")).expect("JSON");
    let cluster = &mut config["clusters"][0]["cluster"];
    cluster["server"] = format!("https://{INVENTED}:{port}").into();
    cluster["tls-server-name"] = "localhost".into();
    write(&root.join("kubeconfig"), &config.to_string());
    becomes_ready(&lab, &root, "static-kubeconfig", &["--kubeconfig=/kubeconfig"], &[]).await;
    assert!(count(INVENTED) > 0, "it asked for {asked:?}");

    // As in a Pod: by its ServiceAccount's token.
    let account = root.join(SERVICE_ACCOUNT);
    write(&account.join("token"), kubectl(&lab, &["-n", NAMESPACE, "create", "token", "kubesentry"]).trim());
    let ca = std::fs::read_to_string(lab.dir().join("pki/ca.crt")).expect("the lab's CA");
    write(&account.join("ca.crt"), &ca);
    write(&account.join("namespace"), NAMESPACE);
    let pod = [("KUBERNETES_SERVICE_HOST", IN_CLUSTER), ("KUBERNETES_SERVICE_PORT", port)];
    becomes_ready(&lab, &root, "static-pod", &[], &pod).await;
    assert!(count(IN_CLUSTER) > 0, "it asked for {asked:?}");
    let searched = format!("{INVENTED}.cluster.local");
    assert!(count(&searched) > 0, "the search list of resolv.conf is followed: {asked:?}");
}
