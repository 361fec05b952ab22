// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package chart

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/e2e/realnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	nodeName = "real-1"
	nodeGPUs = 8
	// newTag is the tag of the controller's image after the upgrade.
	newTag = "v0.1.1-upgrade"
	// nodeTimeout bounds the test: a minute on two idle cores, more when they are busy.
	nodeTimeout = 25 * time.Minute
)

var (
	// show is for make demo INSTALL=1.
	show = flag.Bool("show", false, "print the steps of TestInstallNode as they happen")
	bars = flag.Bool("bars", false, "judge how long an upgrade leaves the cluster without decisions, on a machine that does nothing else")
)

func TestMain(m *testing.M) {
	flag.Parse()
	switch stage := realnode.CurrentStage(); stage {
	case realnode.StageProbe, realnode.StageInit:
		os.Exit(realnode.RunInit(stage))
	default:
		os.Exit(m.Run())
	}
}

// TestInstallNode is the first stage: it gets the parts and runs [TestInstallOnNode] in a node's namespaces, as package
// realnode describes.
func TestInstallNode(t *testing.T) {
	if realnode.CurrentStage() != "" {
		t.Skip("this is the node's side")
	}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	skipIfUnavailable(t, realnode.CheckPodNetwork())
	for _, name := range []string{"gpupilot-agent", "gpupilot-controller"} {
		if _, err := os.Stat(archive(name)); err != nil {
			skipIfUnavailable(t, fmt.Errorf("%w: run make images ARCH=%s first: %w", realnode.ErrUnavailable, runtime.GOARCH, err))
		}
	}
	repository, err := filepath.Abs(root)
	must(t, err)
	buildCommands(t)
	t.Setenv("GPUPILOT_AGENT", filepath.Join(repository, "bin", "gpupilot-agent")) // or it would build one
	var out bytes.Buffer
	nested := realnode.NestedTest{Name: "TestInstallOnNode", Root: repository, Dir: t.TempDir(), Timeout: nodeTimeout, Out: &out, Args: []string{fmt.Sprint("-bars=", *bars)}}
	if *show {
		nested.Out = os.Stdout
	}
	err = nested.Run(ctx)
	if out.Len() > 0 {
		t.Logf("on the node:\n%s", &out)
	}
	skipIfUnavailable(t, err)
}

// archive is the OCI archive of an image that make images has built.
func archive(name string) string { return filepath.Join(root, "bin", "images", name+".tar") }

// skipIfUnavailable skips where the machine cannot run a node, or fails where it must.
func skipIfUnavailable(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, realnode.ErrUnavailable) && os.Getenv("GPUPILOT_REQUIRE_REALNODE") == "" {
		t.Skip(err)
	}
	must(t, err)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// site is a cluster of one real node with GPUs of its device plugin.
type site struct {
	t      *testing.T
	ctx    context.Context
	began  time.Time
	node   *realnode.Node
	helm   *helm
	before inventory // before the installation
	*stack.Stack
}

// newSite starts the control plane and the node.
func newSite(t *testing.T) *site {
	t.Helper()
	parts, err := realnode.InheritParts()
	must(t, err)
	s := &site{t: t, ctx: t.Context(), began: time.Now(), Stack: &stack.Stack{}}
	dir := "/run/install"
	t.Cleanup(func() { dumpLogs(t, parts.Logs, dir) })
	s.Cluster, err = cluster.Start(s.ctx, cluster.Config{
		Binary: parts.Kube, Dir: dir, BindAddress: realnode.NodeAddress,
		// The API server dials the controller's pods itself: no kube-proxy is here.
		ExtraArgs: map[string][]string{cluster.APIServer: {"--enable-aggregator-routing=true"}},
	})
	must(t, err)
	t.Cleanup(s.Cluster.Stop)
	apiserver, err := url.Parse(s.Cluster.URL())
	must(t, err)
	must(t, realnode.ServeClusterIP(s.ctx, cluster.APIServerServiceIP, "443", apiserver.Host))
	s.connect()

	kubeconfig, err := s.Cluster.KubeconfigFor("system:node:"+nodeName, "system:nodes")
	must(t, err)
	s.node, err = realnode.StartNode(s.ctx, realnode.NodeConfig{
		Name: nodeName, Kube: parts.Kube, Runtime: parts.Runtime, Payload: parts.Payload, Kubeconfig: kubeconfig,
		Cgroup: parts.Cgroup, Logs: parts.Logs, PodNetwork: true,
	})
	must(t, err)
	t.Cleanup(s.node.Stop)
	s.offerGPUs()
	s.eventually("the node is ready with its GPUs", func() error {
		var node corev1.Node
		if err := s.Client.Get(s.ctx, client.ObjectKey{Name: nodeName}, &node); err != nil {
			return errors.Join(err, s.node.Err())
		}
		if n := node.Status.Allocatable[realnode.GPUResource]; n.Value() != nodeGPUs {
			return fmt.Errorf("it offers %s GPUs", n.String())
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("its conditions: %v", node.Status.Conditions)
	})
	return s
}

func (s *site) connect() {
	s.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.Cluster.Kubeconfig())
	must(s.t, err)
	config.QPS = -1
	s.REST = config
	s.Client, err = client.NewWithWatch(config, client.Options{})
	must(s.t, err)
	s.helm, err = newHelm(s.Cluster.Kubeconfig(), withServiceIP{})
	must(s.t, err)
}

// importImages gives the node the images, with the tags that the chart and its upgrade ask for.
func (s *site) importImages() {
	s.t.Helper()
	chrt, err := loadChart()
	must(s.t, err)
	must(s.t, s.node.ImportImage(s.ctx, archive("gpupilot-agent"), chrt.Metadata.AppVersion))
	must(s.t, s.node.ImportImage(s.ctx, archive("gpupilot-controller"), chrt.Metadata.AppVersion, newTag))
	s.log("the images are on the node")
}

// offerGPUs runs the device plugin: its devices are those that an agent simulates on this node.
func (s *site) offerGPUs() {
	var uuids []string
	for i := range nodeGPUs {
		uuids = append(uuids, sim.UUID(nodeName, i))
	}
	plugin := realnode.NewPlugin(realnode.DevicePluginDir, uuids)
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		plugin.Run(ctx)
	}()
	s.t.Cleanup(func() {
		cancel()
		<-done
	})
}

func (s *site) log(format string, args ...any) {
	s.t.Helper()
	s.t.Logf("%5.1f s  %s", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// eventually polls until f is nil.
func (s *site) eventually(what string, f func() error) {
	s.t.Helper()
	if err := stack.Await(s.ctx, stack.Patience, f); err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	s.log("%s", what)
}

// podsReady returns an error unless n pods with the labels are Ready, and no other exists.
func (s *site) podsReady(n int, namespace string, labels client.MatchingLabels) error {
	var pods corev1.PodList
	if err := s.Client.List(s.ctx, &pods, client.InNamespace(namespace), labels); err != nil {
		return err
	}
	ready, rest := 0, ""
	for i := range pods.Items {
		p := &pods.Items[i]
		rest += fmt.Sprintf("\n%s: %s %s", p.Name, p.Status.Phase, p.Status.Message)
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil {
				ready++
			}
		}
		for _, c := range p.Status.ContainerStatuses {
			rest += fmt.Sprintf(" %+v restarts %d", c.State, c.RestartCount)
		}
	}
	if ready != n || len(pods.Items) != n {
		return fmt.Errorf("%d of %d pods %v are Ready:%s", ready, n, labels, rest)
	}
	return nil
}

// dumpLogs prints the ends of the logs of the node's programs and containers when the test has failed.
func dumpLogs(t *testing.T, dirs ...string) {
	t.Helper()
	if !t.Failed() {
		return
	}
	var files []string
	for _, dir := range dirs {
		found, err := filepath.Glob(filepath.Join(dir, "*.log"))
		must(t, err)
		files = append(files, found...)
	}
	containers, err := filepath.Glob("/var/log/pods/*/*/*.log")
	must(t, err)
	for _, file := range append(files, containers...) {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // its pod is gone
		}
		t.Logf("%s ends:\n%s", file, b[max(0, len(b)-4000):])
	}
}
