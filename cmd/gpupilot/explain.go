// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// explainCommand prints the last decision of a GPUAutoscaler from its status,
// so that the user's own credentials are all that is needed.
func explainCommand() *cobra.Command {
	var where cluster
	cmd := &cobra.Command{
		Use:   "explain [NAMESPACE/]NAME",
		Short: "Says what was last decided for a GPUAutoscaler, why, and what would change it",
		Long: `Says what was last decided for a GPUAutoscaler, why, from which values, and what would change it: the same
decision engine is asked again with each signal moved, from what it remembers in the object's status.
Without a name, for all of the namespace.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, name, err := where.object(args)
			if err != nil {
				return err
			}
			c, err := where.client()
			if err != nil {
				return err
			}
			all, err := autoscalers(cmd.Context(), c, namespace, name)
			if err != nil {
				return err
			}
			for i := range all {
				if i > 0 {
					fmt.Fprintln(cmd.OutOrStdout())
				}
				explain(cmd.OutOrStdout(), &all[i], time.Now())
			}
			return nil
		},
	}
	where.flags(cmd.Flags())
	return cmd
}

// autoscalers are the one of that name, or all of the namespace.
func autoscalers(ctx context.Context, c client.Client, namespace, name string) ([]v1alpha1.GPUAutoscaler, error) {
	if name != "" {
		var a v1alpha1.GPUAutoscaler
		if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &a); err != nil {
			return nil, fmt.Errorf("read GPUAutoscaler %s/%s: %w", namespace, name, err)
		}
		return []v1alpha1.GPUAutoscaler{a}, nil
	}
	var list v1alpha1.GPUAutoscalerList
	if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list GPUAutoscalers of %s: %w", namespace, err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("no GPUAutoscaler in namespace %s", namespace)
	}
	return list.Items, nil
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
	explainChanges(out, a)
}
