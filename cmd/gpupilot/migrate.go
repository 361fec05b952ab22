// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/replay/migrate"
)

// migrateCommand translates the configuration of other autoscalers.
func migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Translate HPAs, ScaledObjects and prometheus-adapter's rules, and say what would differ",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(migrateAdapterCommand(), migrateObjectCommand(migrate.KindHPA), migrateObjectCommand(migrate.KindScaledObject))
	return cmd
}

// migrateAdapterCommand says what prometheus-adapter's rules become.
func migrateAdapterCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "prometheus-adapter CONFIG [RULES…]",
		Short: "Say what each rule of a prometheus-adapter file becomes",
		Long: `Says for each rule of prometheus-adapter's configuration file what it becomes: a built-in metric, a signal
of a GPUAutoscaler, a recording rule, served as it is by the controller's --adapter-config, or not possible and why.

CONFIG is the file, the ConfigMap that holds it, or the values of the Helm chart with rules.default: false. RULES are
PrometheusRules or rule files of Prometheus: they tell which series are of recording rules, and not of pods. Of alerts
in them, those that use the node label of dcgm-exporter 4.8.2 and older are named.`,
		Example: `  gpupilot migrate prometheus-adapter config.yaml
  kubectl get configmap -n monitoring adapter-config -o yaml | gpupilot migrate prometheus-adapter -`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := readArgument(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			var o migrate.Options
			for _, file := range args[1:] {
				if err := addRules(&o, file, cmd.InOrStdin()); err != nil {
					return err
				}
			}
			report, err := migrate.Adapter(b, o)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return writeAs(cmd.OutOrStdout(), output, report, func(w io.Writer) error { return report.Print(w) })
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json or yaml")
	return cmd
}

// addRules adds the rules of a file.
func addRules(o *migrate.Options, file string, stdin io.Reader) error {
	b, err := readArgument(file, stdin)
	if err != nil {
		return err
	}
	docs, err := migrate.Split(file, b)
	if err != nil {
		return err
	}
	n, err := o.Add(docs)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if n == 0 {
		return fmt.Errorf("%s: the file has no rules: give a PrometheusRule, or a rule file of Prometheus", file)
	}
	return nil
}

// maxInput bounds an input file, in bytes.
const maxInput = 16 << 20

// readArgument reads a file, or standard input for -.
func readArgument(path string, stdin io.Reader) ([]byte, error) {
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }() // only read from
		stdin = f
	}
	b, err := io.ReadAll(io.LimitReader(stdin, maxInput+1))
	if err == nil && len(b) > maxInput {
		err = fmt.Errorf("%s: the file is larger than %d MiB", path, maxInput>>20)
	}
	return b, err
}

// writeAs writes a value as JSON or YAML, or as text.
func writeAs(w io.Writer, format string, value any, text func(io.Writer) error) error {
	switch format {
	case "text":
		return text(w)
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(value)
	case "yaml":
		b, err := yaml.Marshal(value)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	}
	return fmt.Errorf("-o %s: want text, json or yaml", format)
}

// isFile reports whether an argument is a file rather than the name of an object.
func isFile(arg string) bool {
	if arg == "-" {
		return true
	}
	if strings.HasSuffix(arg, ".yaml") || strings.HasSuffix(arg, ".yml") || strings.HasSuffix(arg, ".json") {
		return true
	}
	_, err := os.Stat(arg)
	return !errors.Is(err, os.ErrNotExist)
}
