// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// PodResourcesSocket is the kubelet's socket with the devices of pods.
const PodResourcesSocket = kubeletDir + "/pod-resources/kubelet.sock"

// DevicePluginDir is the kubelet's folder of device plugins.
const DevicePluginDir = kubeletDir + "/device-plugins"

// PayloadImage is the only image on the node; its program waits for its end.
const PayloadImage = "gpupilot.test/payload:1"

// kubeletPort is the kubelet's port. It is fixed, because no other program is in the node's network namespace.
const kubeletPort = 10250

// NodeConfig holds the settings of a node.
type NodeConfig struct {
	Name       string  // name of the Node object
	Kube       string  // binary that is a kubelet when its first argument is "kubelet"
	Runtime    Runtime // containerd and runc
	Payload    string  // static program of the containers
	Kubeconfig string  // of the user system:node:Name
	Cgroup     string  // cgroup under which the pods' are made
	Logs       string  // folder for the programs' output
	PodNetwork bool    // pods that are not on the node's network get addresses; see [CheckPodNetwork]
}

// Node is containerd and a kubelet, in the namespaces that this process is in.
type Node struct {
	cfg        NodeConfig
	containerd *process
	kubelet    *process
}

// StartNode starts containerd, gives it the payload's image and starts the kubelet. The programs end with the namespaces.
func StartNode(ctx context.Context, cfg NodeConfig) (*Node, error) {
	n := &Node{cfg: cfg}
	if err := n.startContainerd(ctx); err != nil {
		return nil, err
	}
	if err := n.importPayload(ctx); err != nil {
		return nil, err
	}
	if err := n.writeKubeletConfig(); err != nil {
		return nil, err
	}
	return n, n.StartKubelet()
}

// Err returns nil while the node's programs run.
func (n *Node) Err() error {
	if err := n.containerd.ended(); err != nil {
		return err
	}
	return n.kubelet.ended()
}

// StopKubelet ends the kubelet; the containers run on.
func (n *Node) StopKubelet() { n.kubelet.stop(10 * time.Second) }

// Stop ends the kubelet and containerd. The containers and their shims end with the namespaces.
func (n *Node) Stop() {
	n.kubelet.stop(5 * time.Second)
	n.containerd.stop(5 * time.Second)
}

// containerdConfig is containerd's configuration, version 2. All that it writes is below its root. The snapshotter that
// copies files works on every file system, and our image is one small file. The restrictions lifted are those of a
// service manager, which is not there.
const containerdConfig = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PayloadImage + `"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "%[2]s"
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "%[1]s/cni"
    conf_dir = "%[1]s/cni"
`

// networkConfig is the pod network of a node without [NodeConfig.PodNetwork], because with none the node would not be
// Ready. Nothing uses it, so its plugin does not exist: the pods are on the host's network.
const networkConfig = `{"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "none"}]}`

func (n *Node) containerdDir() string    { return filepath.Join(runDir, "containerd") }
func (n *Node) containerdSocket() string { return filepath.Join(n.containerdDir(), "containerd.sock") }

func (n *Node) startContainerd(ctx context.Context) error {
	dir := n.containerdDir()
	if err := n.writeNetwork(dir); err != nil {
		return err
	}
	config := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf(containerdConfig, dir, n.cfg.Runtime.Runc())
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return err
	}
	var err error
	env := []string{"PATH=" + n.cfg.Runtime.Path()}
	n.containerd, err = start(n.cfg.Logs, "containerd", n.cfg.Runtime.Containerd(), []string{"--config", config}, env)
	if err != nil {
		return err
	}
	for {
		if _, err = n.ctr(ctx, "version"); err == nil {
			return nil
		}
		if ended := n.containerd.ended(); ended != nil {
			return ended
		}
		if !wait(ctx, 50*time.Millisecond) {
			return fmt.Errorf("wait for containerd: %w; its log ends:\n%s", err, tail(n.containerd.log))
		}
	}
}

// writeNetwork writes the CNI configuration.
func (n *Node) writeNetwork(dir string) error {
	if n.cfg.PodNetwork {
		return writePodNetwork(dir)
	}
	if err := os.MkdirAll(filepath.Join(dir, "cni"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "cni", "none.conflist"), []byte(networkConfig), 0o644)
}

// ctr runs containerd's command line on the kubelet's images and containers.
func (n *Node) ctr(ctx context.Context, args ...string) (string, error) {
	return output(ctx, "", n.cfg.Runtime.Ctr(), append([]string{"--address", n.containerdSocket(), "--namespace", "k8s.io"}, args...)...)
}

// importPayload makes the payload's image and hands it to containerd.
func (n *Node) importPayload(ctx context.Context) error {
	program, err := os.ReadFile(n.cfg.Payload)
	if err != nil {
		return err
	}
	var image bytes.Buffer
	if err := WriteImage(&image, program, PayloadImage); err != nil {
		return err
	}
	archive := filepath.Join(runDir, "payload.tar")
	if err := os.WriteFile(archive, image.Bytes(), 0o644); err != nil {
		return err
	}
	if _, err := n.ctr(ctx, "images", "import", "--snapshotter", "native", archive); err != nil {
		return fmt.Errorf("import the image: %w", err)
	}
	return nil
}

func (n *Node) kubeletConfigFile() string { return filepath.Join(runDir, "kubelet.json") }

// writeKubeletConfig writes the kubelet's configuration: on the cgroups of either version, without a service manager,
// packet filters, swap rules or a name server, and never short of disk. It reports changes at once.
func (n *Node) writeKubeletConfig() error {
	config, err := json.Marshal(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",

		"containerRuntimeEndpoint":    "unix://" + n.containerdSocket(),
		"cgroupDriver":                "cgroupfs",
		"cgroupRoot":                  n.cfg.Cgroup,
		"failCgroupV1":                false,
		"enforceNodeAllocatable":      []string{},
		"protectKernelDefaults":       true, // they are covered, see kubeletSysctls; a failure is better than a change
		"makeIPTablesUtilChains":      false,
		"failSwapOn":                  false,
		"resolvConf":                  "",
		"oomScoreAdj":                 0,
		"address":                     NodeAddress,
		"port":                        kubeletPort,
		"healthzPort":                 0,
		"authentication":              map[string]any{"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false}},
		"authorization":               map[string]any{"mode": "AlwaysAllow"},
		"evictionHard":                map[string]string{"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
		"imageGCHighThresholdPercent": 100,
		"nodeStatusUpdateFrequency":   "1s",
		"serializeImagePulls":         false,
		"syncFrequency":               "5s", // how late a mounted ConfigMap follows
		"kubeAPIQPS":                  100,
		"kubeAPIBurst":                200,
		// As kubelets before 1.34, which list pods that have ended: the agent must know them by itself.
		"featureGates": map[string]bool{"KubeletPodResourcesListUseActivePods": false},
	})
	if err != nil {
		return fmt.Errorf("encode the kubelet's configuration: %w", err)
	}
	return os.WriteFile(n.kubeletConfigFile(), config, 0o644)
}

// StartKubelet starts the kubelet, for the first time or again.
func (n *Node) StartKubelet() error {
	args := []string{
		"kubelet",
		"--config=" + n.kubeletConfigFile(),
		"--kubeconfig=" + n.cfg.Kubeconfig,
		"--hostname-override=" + n.cfg.Name,
		"--node-ip=" + NodeAddress,
	}
	kubelet, err := start(n.cfg.Logs, "kubelet", n.cfg.Kube, args, nil)
	if err != nil {
		return err
	}
	n.kubelet = kubelet
	return nil
}
