// SPDX-License-Identifier: Apache-2.0

// Command kube is a whole Kubernetes control plane, and a kubelet, in one binary: the real code of etcd and Kubernetes,
// for GPUPilot's demo and tests. The first argument says which component the process is:
//
//	kube etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet [flags of that component]
//
// A link to the binary that bears a component's name is that component. One binary instead of five costs one link
// step and one copy of the packages that they share; each component is still a process of its own.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // time zones for CronJobs where the machine has none

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // the JSON log format
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // the version metric
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// components are the programs that the binary is.
var components = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"}

func main() {
	args := componentArgs(os.Args)
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, usage())
		os.Exit(2)
	}
	// The components' commands read os.Args, and call themselves by its first word.
	os.Args = args
	if args[0] == "etcd" {
		etcdmain.Main(args)
		return
	}
	command := commandFor(args[0])
	if command == nil {
		fmt.Fprintf(os.Stderr, "kube: unknown component %q\n%s\n", args[0], usage())
		os.Exit(2)
	}
	os.Exit(cli.Run(command))
}

func usage() string { return "usage: kube " + strings.Join(components, "|") + " [flags]" }

// componentArgs is the component's own command line: the program's name where that is a component, else what follows it.
func componentArgs(argv []string) []string {
	if len(argv) == 0 {
		return nil
	}
	name := filepath.Base(argv[0])
	if slices.Contains(components, name) {
		return append([]string{name}, argv[1:]...)
	}
	return argv[1:]
}

// commandFor is the command of a Kubernetes component, nil for a name that is none.
func commandFor(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kubelet":
		return kubeletCommand(kubelet.NewKubeletCommand)
	default:
		return nil
	}
}

// kubeletCommand is the kubelet's command, which takes a context since Kubernetes 1.34.
func kubeletCommand(constructor any) *cobra.Command {
	if withoutContext, ok := constructor.(func() *cobra.Command); ok {
		return withoutContext()
	}
	return constructor.(func(context.Context) *cobra.Command)(context.Background())
}
