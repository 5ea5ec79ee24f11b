"""Read YAML files of open-r1, alignment-handbook and older TRL as recipes."""
