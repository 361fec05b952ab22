// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// explainCommand prints the last decision of a GPUAutoscaler from its status,
// so that the user's own credentials are all that is needed.
func explainCommand() *cobra.Command {
	var kubeconfig string
	cmd := &cobra.Command{
		Use:   "explain NAMESPACE/NAME",
		Short: "Says what was last decided for a GPUAutoscaler, and why",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, name, ok := strings.Cut(args[0], "/")
			if !ok || namespace == "" || name == "" {
				return fmt.Errorf("%q is not NAMESPACE/NAME of a GPUAutoscaler", args[0])
			}
			c, err := newClient(kubeconfig)
			if err != nil {
				return err
			}
			var a v1alpha1.GPUAutoscaler
			if err := c.Get(cmd.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &a); err != nil {
				return fmt.Errorf("read GPUAutoscaler %s: %w", args[0], err)
			}
			explain(cmd.OutOrStdout(), &a, time.Now())
			return nil
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "path of a kubeconfig (default: $KUBECONFIG, ~/.kube/config, or in-cluster)")
	return cmd
}

// newClient reads the cluster that kubectl would talk to.
func newClient(kubeconfig string) (client.Client, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return client.New(cfg, client.Options{Scheme: scheme})
}

// explain writes a's last decision for a person.
func explain(out io.Writer, a *v1alpha1.GPUAutoscaler, now time.Time) {
	s := &a.Status
	fmt.Fprintf(out, "%s/%s scales %s %s: %d now, %d serving, %d starting, %d desired\n",
		a.Namespace, a.Name, a.Spec.ScaleTargetRef.Kind, a.Spec.ScaleTargetRef.Name,
		s.CurrentReplicas, s.ServingReplicas, s.StartingReplicas, s.DesiredReplicas)
	for _, c := range s.Conditions {
		if c.Status != "True" {
			fmt.Fprintf(out, "  %s is %s (%s): %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	for _, p := range s.Pending {
		fmt.Fprintf(out, "  %d held up by %s: %s\n", p.Replicas, p.Reason, p.Message)
	}
	if s.Startup != nil {
		fmt.Fprintf(out, "a replica takes %d s to serve (p95 %d s, %d starts seen)\n", s.Startup.P50Seconds, s.Startup.P95Seconds, s.Startup.Samples)
	}
	d := s.LastDecision
	if d == nil {
		fmt.Fprintln(out, "nothing decided yet")
		return
	}
	fmt.Fprintf(out, "decided %s ago, %s:\n", now.Sub(d.Time.Time).Round(time.Second), d.Reason)
	for _, st := range d.Steps {
		fmt.Fprintf(out, "  %d → %d  %-14s %s\n", st.Before, st.After, st.Rule, st.Message)
	}
	for _, in := range d.Inputs {
		value := "not readable"
		if in.Value != "" {
			value = fmt.Sprintf("%s %s, %d ms old, from %d", in.Value, in.Unit, in.AgeMilliseconds, in.Replicas)
		}
		fmt.Fprintf(out, "  input %s: %s (target %s %s)\n", in.Signal, value, in.Target, in.Unit)
	}
}
